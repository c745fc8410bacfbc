#ifndef LLAMA_KVQ_H
#define LLAMA_KVQ_H

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

/** Choose how contexts that are created from now on store keys and values.
 *
 *  \param policy  a policy of kvq (a format such as `gs4`, keys/values such as `int8/gs4`, or YAML, see
 *                 kvq_policy_load); "" or "none": llama.cpp's own cache; NULL: what the environment's KVQ_POLICY says
 *                 when a context is created, llama.cpp's own cache without it. The text is copied.
 *  \threads any.
 */
LLAMA_API void llama_kvq_set_policy(const char* policy);

/** Get the bytes that a context's kvq cache takes now, with the workspace of attention; 0 for llama.cpp's own cache. */
LLAMA_API size_t llama_kvq_bytes(const struct llama_context* context);

/** Get the number by which snapshots of kvq know a model: kvq_cache_options::model_id of its caches. */
LLAMA_API uint64_t llama_kvq_model_id(const struct llama_model* model);

#ifdef __cplusplus
}
#endif

#endif
