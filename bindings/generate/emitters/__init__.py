"""One module for each kind of file. emit(api) returns {path from the repository's root: text}; `api` is what
kvq-api.json holds. Modules whose names begin with _ are helpers."""
