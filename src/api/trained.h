// Shared code of the handles of codebooks, centres and routers, and of their trainers.
#pragma once

#include "api/boundary.h"
#include "api/handles.h"
#include "core/training_progress.h"
#include "io/metadata_fields.h"
#include "io/safetensors.h"

#include <algorithm>
#include <cstddef>
#include <initializer_list>
#include <span>
#include <type_traits>

namespace kvq::api {

/// The same for a file.
inline void hand_over(const io::SafetensorsWriter& file, void* buffer, size_t capacity, size_t& size) {
  hand_over(file.size(), buffer, capacity, size, [&](std::span<std::byte> bytes) { file.write(bytes); });
}

/// Make a handle of trained data.
template <typename Handle, typename Data>
Owned<Handle> make_trained(kvq_context& context, Data&& data) {
  using Trained = std::remove_cvref_t<Data>;
  auto shared = std::allocate_shared<const Trained>(StlAllocator<Trained>(context.allocator), std::forward<Data>(data));
  return make_owned<Handle>(context.allocator, context, std::move(shared));
}

/// Make a handle of a file's content, read by `read`.
template <typename Handle, typename Data>
kvq_status load_trained(kvq_context* context, const void* buffer, size_t size, Handle** result, kvq_error* error,
                        Data (*read)(Allocator&, std::span<const std::byte>)) {
  return created(result, error, [&] {
    require(context, "context");
    require(buffer, "buffer");
    require(result, "result");
    return make_trained<Handle>(*context, read(context->allocator, {static_cast<const std::byte*>(buffer), size}));
  });
}

/// Save trained data to the file that `write` makes.
template <typename Handle, typename Data>
kvq_status save_trained(const Handle* handle, const char* argument, void* buffer, size_t capacity, size_t* size,
                        kvq_error* error, io::SafetensorsWriter (*write)(Allocator&, const Data&)) {
  return guarded(error, [&] {
    require(handle, argument);
    require(size, "size");
    hand_over(write(handle->context->allocator, *handle->shared), buffer, capacity, *size);
  });
}

/// Fill the fields that all infos share.
template <typename Info, typename Data>
Info describe_trained(const Data& data, kvq_rope rope, uint64_t bytes) {
  Info info{};
  info.n_layers = data.shape.n_layers;
  info.kv_heads = data.shape.kv_heads;
  info.head_dim = data.shape.head_dim;
  info.rope = rope;
  info.seed = data.seed;
  info.model_id = data.model_id;
  info.bytes = bytes;
  info.note = data.note.c_str();
  return info;
}

/// Fill in how many layers are present and their fewest tokens; `add` adds a layer's figure to each of `means`.
template <typename Info, typename Data, typename Add>
void describe_layers(const Data& data, Info& info, std::initializer_list<double*> means, const Add& add) {
  info.layers_present = data.layers_present();
  for (const auto& layer : data.layers) {
    if (layer.numbers == nullptr) continue;
    add(layer);
    info.tokens = info.tokens == 0 ? layer.tokens : std::min(info.tokens, layer.tokens);
  }
  if (info.layers_present == 0) return;
  for (double* mean : means) *mean /= info.layers_present;
}

/// A trainer that trains one layer after the other.
template <typename Trainer>
struct TrainerHandle : Trainer {
  template <typename Options>
  TrainerHandle(kvq_context& owner, const Options& options)
      : Trainer(owner.allocator, owner.parallel, owner.backend->training().require(), options), context(owner) {}

  Kept<kvq_context> context;
};

/// Take the options that all trainers share.
template <typename Given, typename Options>
void take_common(const Given& given, size_t most_note, Options& options) {
  options.seed = given.seed;
  options.max_bytes = given.max_bytes;
  if (given.note != nullptr) options.note = given.note;
  io::check_note(options.note, most_note, "options->note");
}

/// Create a trainer; `check` turns the caller's options into the trainer's.
template <typename Handle, typename Given, typename Options>
kvq_status create_trainer(kvq_context* context, const Given* options, const Given& defaults, Handle** result,
                          kvq_error* error, Options (*check)(const kvq_context&, const Given&)) {
  return created(result, error, [&] {
    require(context, "context");
    const Given given = read_struct(options, defaults, "options");
    require(result, "result");
    return make_owned<Handle>(context->allocator, *context, check(*context, given));
  });
}

template <typename Handle>
void require_trainer_layer(const Handle* trainer, int32_t layer) {
  require(trainer, "trainer");
  require_range(layer, 0, trainer->result().shape.n_layers - 1, "layer");
}

template <typename Handle>
kvq_status add_to_trainer(Handle* trainer, int32_t layer, int32_t n, const void* k, const void* v, kvq_dtype dtype,
                          kvq_error* error) {
  return guarded(error, [&] {
    require_trainer_layer(trainer, layer);
    require_range(n, 1, INT32_MAX, "n");
    if (trainer->trains(Side::kKeys)) require(k, "k");
    if (trainer->trains(Side::kValues)) require(v, "v");
    require_range(dtype, KVQ_F32, KVQ_BF16, "dtype");
    trainer->add(layer, n, k, v, dtype);
  });
}

template <typename Handle>
kvq_status run_trainer(Handle* trainer, int32_t layer, kvq_progress_hook progress, void* user, kvq_error* error) {
  return guarded(error, [&] {
    require_trainer_layer(trainer, layer);
    trainer->run(layer, TrainingProgress(progress, user));
  });
}

template <typename Trainer, typename Handle>
kvq_status trainer_result(const Trainer* trainer, Handle** result, kvq_error* error) {
  return created(result, error, [&] {
    require(trainer, "trainer");
    require(result, "result");
    return make_trained<Handle>(*trainer->context, trainer->result());
  });
}

}  // namespace kvq::api
