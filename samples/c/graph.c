/* Decode on a GPU: move a prompt that a CPU cached, then replay a CUDA graph while the sequence grows. Exits with
 * status 77 if there is no GPU.
 *
 *   cc graph.c $(pkg-config --cflags --libs kvq) -Wl,-rpath,$(pkg-config --variable=libdir kvq) \
 *     -I/usr/local/cuda/include -L/usr/local/cuda/lib64 -lcudart -lm -o graph
 *   ./graph
 */
#include <cuda_runtime_api.h>
#include <math.h>

#include "sample.h"

enum { TEXT = 0, PROMPT = 300, TOKENS = 400, SKIPPED = 77 };

static void require_cuda(cudaError_t status) {
  if (status == cudaSuccess) return;
  fprintf(stderr, "%s\n", cudaGetErrorString(status));
  exit(1);
}

/* Tensors of the engine's kernels, at fixed addresses, because the graph refers to them. */
typedef struct device_tensors {
  float* q[LAYERS];
  float* k[LAYERS];
  float* v[LAYERS];
  float* output; /* the last layer's */
} device_tensors;

static float* device_tensor(int row) {
  void* memory = NULL;
  require_cuda(cudaMalloc(&memory, (size_t)row * sizeof(float)));
  return (float*)memory;
}

/* Stands in for the engine's projections, which would be part of the graph. */
static void upload_token(const device_tensors* t, int position, cudaStream_t stream) {
  float q[Q_ROW], k[KV_ROW], v[KV_ROW];
  for (int layer = 0; layer < LAYERS; ++layer) {
    project(TEXT, layer, position, 1, q, k, v);
    require_cuda(cudaMemcpyAsync(t->q[layer], q, sizeof q, cudaMemcpyHostToDevice, stream));
    require_cuda(cudaMemcpyAsync(t->k[layer], k, sizeof k, cudaMemcpyHostToDevice, stream));
    require_cuda(cudaMemcpyAsync(t->v[layer], v, sizeof v, cudaMemcpyHostToDevice, stream));
  }
}

/* The calls are the same whether the stream executes or is captured. */
static void decode_token(kvq_cache* cache, kvq_sequence* sequence, const device_tensors* t) {
  const kvq_sequence* sequences[1] = {sequence};
  for (int layer = 0; layer < LAYERS; ++layer) {
    require(kvq_append(cache, sequence, layer, 1, t->k[layer], t->v[layer], KVQ_F32, NULL, &error));

    kvq_attend_batch batch;
    kvq_attend_batch_init(&batch, sizeof batch);
    batch.n_sequences = 1;
    batch.sequences = sequences;
    batch.q = t->q[layer];
    batch.output = t->output;
    require(kvq_attend(cache, layer, &batch, &error));
  }
}

static cudaGraphExec_t capture(kvq_cache* cache, kvq_sequence* sequence, const device_tensors* t, cudaStream_t stream) {
  cudaGraph_t graph = NULL;
  cudaGraphExec_t executable = NULL;
  require(kvq_sequence_reserve(cache, sequence, TOKENS - PROMPT, &error)); /* a graph cannot allocate pages */
  require_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  decode_token(cache, sequence, t); /* recorded, not executed */
  require_cuda(cudaStreamEndCapture(stream, &graph));
  require_cuda(cudaGraphInstantiate(&executable, graph, 0));
  require_cuda(cudaGraphDestroy(graph));
  return executable;
}

/* Move a sequence from the CPU to the GPU. Snapshots are the same everywhere, so this also moves a sequence to another
 * GPU or another machine. */
static kvq_sequence* move_to(kvq_cache* target, kvq_cache* source, const kvq_sequence* sequence) {
  kvq_sequence* moved = NULL;
  size_t size = 0;
  void* bytes = save(source, sequence, &size);
  require(kvq_sequence_load(target, bytes, size, &moved, &error));
  free(bytes);
  return moved;
}

int main(void) {
  static const char policy[] = "int4+hadamard";
  kvq_context* cpu = NULL;
  kvq_context* gpu = NULL;
  kvq_sequence* cpu_sequence = NULL;
  cudaStream_t stream = NULL;
  kvq_error_init(&error, sizeof error);

  kvq_device_info device;
  device.struct_size = sizeof device;
  if (kvq_device_describe(KVQ_DEVICE_CUDA, 0, NULL, &device, &error) != KVQ_OK) {
    printf("skipped: %s\n", error.message);
    return SKIPPED;
  }
  require_cuda(cudaStreamCreate(&stream));
  kvq_context_options options;
  kvq_context_options_init(&options, sizeof options);
  options.device = KVQ_DEVICE_CUDA;
  options.device_index = 0;
  options.stream = stream; /* the engine's stream: calls enqueue work on it and return */
  require(kvq_context_create(&options, &gpu, &error));
  require(kvq_context_create(NULL, &cpu, &error));
  kvq_cache* gpu_cache = create_cache(gpu, policy);
  kvq_cache* cpu_cache = create_cache(cpu, policy);

  float* prompt_output = tensor(PROMPT, Q_ROW);
  require(kvq_sequence_create(cpu_cache, &cpu_sequence, &error));
  step(cpu_cache, cpu_sequence, TEXT, 0, PROMPT, prompt_output);
  free(prompt_output);
  kvq_sequence* sequence = move_to(gpu_cache, cpu_cache, cpu_sequence);

  device_tensors t;
  for (int layer = 0; layer < LAYERS; ++layer) {
    t.q[layer] = device_tensor(Q_ROW);
    t.k[layer] = device_tensor(KV_ROW);
    t.v[layer] = device_tensor(KV_ROW);
  }
  t.output = device_tensor(Q_ROW);

  upload_token(&t, PROMPT, stream);
  decode_token(gpu_cache, sequence, &t); /* once without a graph: attention allocates its workspace */
  cudaGraphExec_t graph = capture(gpu_cache, sequence, &t, stream);
  for (int position = PROMPT + 1; position < TOKENS; ++position) {
    upload_token(&t, position, stream);
    require_cuda(cudaGraphLaunch(graph, stream)); /* appends one more token and attends to all */
  }

  float output[Q_ROW], expected[Q_ROW];
  require_cuda(cudaMemcpyAsync(output, t.output, sizeof output, cudaMemcpyDeviceToHost, stream));
  require_cuda(cudaStreamSynchronize(stream));
  for (int position = PROMPT; position < TOKENS; ++position) {
    step(cpu_cache, cpu_sequence, TEXT, position, 1, expected);
  }
  double squared_error = 0, squared = 0;
  for (int i = 0; i < Q_ROW; ++i) {
    squared_error += pow((double)output[i] - expected[i], 2);
    squared += pow(expected[i], 2);
  }
  printf("%s: %d tokens, content %08" PRIx32 "\n", device.name, (int)length_of(sequence), content(gpu_cache, sequence));
  printf("CPU: %d tokens, content %08" PRIx32 "\n", (int)length_of(cpu_sequence), content(cpu_cache, cpu_sequence));
  printf("difference between GPU and CPU: %.5f\n", sqrt(squared_error / squared));

  require_cuda(cudaGraphExecDestroy(graph)); /* before the objects that it refers to */
  kvq_sequence_destroy(sequence);
  kvq_sequence_destroy(cpu_sequence);
  kvq_cache_destroy(gpu_cache);
  kvq_cache_destroy(cpu_cache);
  kvq_context_destroy(gpu);
  kvq_context_destroy(cpu);
  for (int layer = 0; layer < LAYERS; ++layer) {
    cudaFree(t.q[layer]);
    cudaFree(t.k[layer]);
    cudaFree(t.v[layer]);
  }
  cudaFree(t.output);
  cudaStreamDestroy(stream);
  return 0;
}
