# Included at the end of llama.cpp's src/CMakeLists.txt: KVQ_LLAMA_DIR is this folder, KVQ_INCLUDE_DIR has kvq.h and
# KVQ_LIBRARY is libkvq.
set(kvq_sources kvq_cache.cpp kvq_device.cpp kvq_graph.cpp kvq_memory.cpp kvq_sequences.cpp kvq_state.cpp kvq_threads.cpp)
list(TRANSFORM kvq_sources PREPEND "${KVQ_LLAMA_DIR}/")
target_sources(llama PRIVATE ${kvq_sources})
set_source_files_properties(${kvq_sources} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
target_include_directories(llama PUBLIC "${KVQ_LLAMA_DIR}" PRIVATE "${KVQ_INCLUDE_DIR}")
target_link_libraries(llama PRIVATE "${KVQ_LIBRARY}")
