inline std::vector<Sequence> Cache::load(std::span<const std::byte> buffer, const kvq_load_options& options) const {
  std::vector<kvq_sequence*> handles(static_cast<size_t>(describe_snapshot(buffer, options).n_sequences));
  std::vector<Sequence> sequences;
  sequences.reserve(handles.size());  // nothing throws between the call and their owners
  const detail::Outcome outcome(kvq_cache_load, get(), buffer.data(), buffer.size(), handles.data(),
                                static_cast<int32_t>(handles.size()), &options);
  for (kvq_sequence* const handle : handles) sequences.emplace_back(handle);  // destroyed if a hook has thrown
  outcome.raise();
  return sequences;
}

inline std::vector<std::byte> Cache::save(std::span<const Sequence> sequences) const {
  return save(pointers(sequences));
}
