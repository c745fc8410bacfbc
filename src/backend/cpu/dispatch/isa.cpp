#include "backend/cpu/dispatch/isa.h"

#include "backend/cpu/dispatch/tables.h"
#include "core/error.h"

#include <hwy/targets.h>

#include <array>
#include <cstdio>
#include <cstring>

namespace kvq::cpu {
namespace {

struct Tables {
  std::array<const KernelTable*, 8> entries{};
  size_t count = 0;

  void add(const KernelTable& table) { entries[count++] = &table; }

  Tables() {
#if defined(KVQ_HAVE_AVX512VNNI)
    if (__builtin_cpu_supports("avx512vnni") != 0 && __builtin_cpu_supports("avx512vbmi") != 0 &&
        (hwy::SupportedTargets() & HWY_AVX3) != 0) {
      if (can_use_amx()) add(amx_table());
      add(avx512vnni_table());
    }
#endif
    for (const TargetTable<KernelTable>& each : highway_tables()) {
      if (each.runs_here()) add(*each.table);
    }
  }
};

}  // namespace

std::span<const KernelTable* const> available_tables() {
  static const Tables tables;
  return {tables.entries.data(), tables.count};
}

const KernelTable& find_table(const char* name) {
  const auto tables = available_tables();
  if (name == nullptr) return *tables.front();
  char names[160] = "";
  for (const KernelTable* table : tables) {
    if (std::strcmp(table->name, name) == 0) return *table;
    const size_t used = std::strlen(names);
    std::snprintf(names + used, sizeof(names) - used, "%s%s", used == 0 ? "" : ", ", table->name);
  }
  fail(KVQ_E_UNSUPPORTED, "cpu_isa is \"%.40s\", this machine and build have: %s", name, names);
}

}  // namespace kvq::cpu
