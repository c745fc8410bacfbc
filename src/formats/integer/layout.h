// Meaning of the fields of an integer side.
//
// Asymmetric codes, KIVI's grouping: x̂ = code · scale + minimum. Keys share a scale per channel over the 32 tokens of
// the page (`[head_dim]`), values per token over `group` channels (`[groups][32]`).
#pragma once

#include "formats/page_fields.h"
