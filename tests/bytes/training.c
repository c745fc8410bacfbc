#include "bytes.h"
#include "capi/trainer_fixture.h"

enum { kTokens = 160, kScalars = kTokens * kKvHeads * kBytesHeadDim };

static float k[kScalars];
static float v[kScalars];

static void fill_layer(int32_t layer) {
  fill_exactly(k, kScalars, kBytesHeadDim, 50 + (uint32_t)layer);
  fill_exactly(v, kScalars, kBytesHeadDim, 60 + (uint32_t)layer);
}

/* Record a file, and keep it if it is the first one. */
static void keep(const char* what, blob* file, blob* kept) {
  record("trained", what, file->data, file->size);
  if (kept->data == NULL) {
    *kept = *file;
  } else {
    blob_free(file);
  }
}

static void record_codebook(kvq_context* context, blob* kept) {
  kvq_codebook_trainer_options options = small_codebook_options();
  kvq_codebook_trainer* trainer;
  kvq_codebook* codebook = NULL;
  blob file;
  int32_t layer;
  options.head_dim = kBytesHeadDim;
  trainer = new_codebook_trainer(context, &options);
  for (layer = 0; layer < kLayers; ++layer) {
    fill_layer(layer);
    ACCEPTED(kvq_codebook_trainer_add(trainer, layer, kTokens, k, v, KVQ_F32, err));
    ACCEPTED(kvq_codebook_trainer_run(trainer, layer, NULL, NULL, err));
  }
  ACCEPTED(kvq_codebook_trainer_result(trainer, &codebook, err));
  SAVE(&file, kvq_codebook_save, codebook);
  kvq_codebook_destroy(codebook);
  kvq_codebook_trainer_destroy(trainer);
  keep("codebook", &file, kept);
}

static void record_centres(kvq_context* context, int scales, blob* kept) {
  kvq_centres_trainer_options options = small_centres_options();
  kvq_centres_trainer* trainer;
  kvq_centres* centres = NULL;
  blob file;
  int32_t layer;
  options.head_dim = kBytesHeadDim;
  if (scales) {
    options.key_centres = 0;
    options.value_centres = 0;
    options.key_scales = 1;
    options.value_scales = 1;
  }
  trainer = new_centres_trainer(context, &options);
  for (layer = 0; layer < kLayers; ++layer) {
    fill_layer(layer);
    ACCEPTED(kvq_centres_trainer_add(trainer, layer, kTokens, k, v, KVQ_F32, err));
    ACCEPTED(kvq_centres_trainer_run(trainer, layer, NULL, NULL, err));
  }
  ACCEPTED(kvq_centres_trainer_result(trainer, &centres, err));
  SAVE(&file, kvq_centres_save, centres);
  kvq_centres_destroy(centres);
  kvq_centres_trainer_destroy(trainer);
  keep(scales ? "scales" : "centres", &file, kept);
}

void record_training(kvq_context* context, trained* files) {
  record_codebook(context, &files->codebook);
  record_centres(context, 0, &files->centres);
  record_centres(context, 1, &files->scales);
}
