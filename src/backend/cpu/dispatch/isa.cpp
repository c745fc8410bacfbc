#include "backend/cpu/dispatch/isa.h"

#include "backend/cpu/context_codec.h"
#include "backend/cpu/dispatch/avx512vnni.h"
#include "backend/cpu/dispatch/highway.h"
#include "core/error.h"
#include "core/target_tables.h"
#include "core/text.h"

#include <array>
#include <cstdio>
#include <cstring>

namespace kvq::cpu {
namespace {

void set_codec(KernelTable& table, const CodecKernels& kernels) {
  for (const CodeKernels& each : kernels.codes) table.plain(each.code) = each.kernels;
  if (kernels.centres.nearest != nullptr) table.centres = kernels.centres;
}

/// The portable kernels of one Highway target.
KernelTable make_portable(size_t i) {
  KernelTable table;
  for (const auto& codec : {highway_float16_kernels, highway_integer_kernels, highway_gain_shape_kernels}) {
    set_codec(table, *codec()[i].table);
  }
  for (const ContextCodec* codec : {&commvq_codec(), &centred_codec()}) table.contexts[codec->codec().number] = codec;
  const TargetTable<AttendKernels>& attend = highway_attend_kernels()[i];
  table.name = isa_name(attend.target != 0 ? attend.target : HWY_STATIC_TARGET);
  table.softmax = attend.table->softmax;
  table.blend = attend.table->blend;
  table.commvq = *highway_commvq_kernels()[i].table;
  table.append = highway_append_kernels()[i].table;
  table.linear = highway_linear_kernels()[i].table;
  return table;
}

#if defined(KVQ_HAVE_DOT_PRODUCTS)
/// The portable kernels with dot products of bytes.
KernelTable make_dot_products(KernelTable table) {
  table.name = HWY_ARCH_X86 ? "avxvnni" : "neon-dotprod";
  set_codec(table, *dot_product_integer_kernels().front().table);
  set_codec(table, *dot_product_gain_shape_kernels().front().table);
  table.linear = dot_product_linear_kernels().front().table;
  return table;
}
#endif

#if defined(KVQ_HAVE_AVX512VNNI)
LinearKernels make_avx512vnni_linear(LinearKernels kernels, const DecodedProducts& products) {
  kernels.products = products;
  set_avx512vnni_nuq(kernels);
  set_avx512vnni_vq(kernels);
  set_avx512vnni_trellis(kernels);
  return kernels;
}

/// Portable AVX-512 kernels plus byte dot products for integers and lookups by permutation.
KernelTable make_avx512vnni(KernelTable table) {
  table.name = "avx512vnni";
  set_avx512vnni_keys(table);
  set_avx512vnni_values(table);
  set_avx512vnni_gain_shape_keys(table);
  set_avx512vnni_gain_shape_values(table);
  set_avx512vnni_softmax(table);
  set_avx512vnni_commvq_keys(table.commvq);
  set_avx512vnni_commvq_values(table.commvq);
  set_avx512vnni_centres(table.centres);
  static const LinearKernels kLinear = make_avx512vnni_linear(*table.linear, avx512vnni_products());
  table.linear = &kLinear;
  return table;
}

#if defined(KVQ_HAVE_AMX)
/// The AVX-512 VNNI kernels plus AMX tiles for linear layers on many rows.
KernelTable make_amx(KernelTable table) {
  table.name = "amx";
  static const LinearKernels kLinear = make_avx512vnni_linear(*table.linear, amx_products());
  table.linear = &kLinear;
  return table;
}
#endif
#endif

/// Tables that this processor can run, best first.
class Tables {
 public:
  Tables() {
    const auto targets = highway_attend_kernels();
    for (size_t i = 0; i < targets.size(); ++i) {
      if (!targets[i].runs_here()) continue;
      const KernelTable portable = make_portable(i);
#if defined(KVQ_HAVE_AVX512VNNI)
      if (targets[i].target == HWY_AVX3 && __builtin_cpu_supports("avx512vnni") != 0 &&
          __builtin_cpu_supports("avx512vbmi") != 0 && __builtin_cpu_supports("avx512vbmi2") != 0) {
        const KernelTable avx512vnni = make_avx512vnni(portable);
#if defined(KVQ_HAVE_AMX)
        if (can_use_amx()) add(make_amx(avx512vnni));
#endif
        add(avx512vnni);
      }
#endif
#if defined(KVQ_HAVE_DOT_PRODUCTS)
      if ((targets[i].target == HWY_AVX2 || !HWY_ARCH_X86) && runs_dot_products()) add(make_dot_products(portable));
#endif
      add(portable);
    }
  }
  std::span<const KernelTable* const> all() const { return {list_.data(), count_}; }

 private:
  void add(const KernelTable& table) {
    tables_[count_] = table;
    list_[count_] = &tables_[count_];
    ++count_;
  }

  std::array<KernelTable, 8> tables_{};
  std::array<const KernelTable*, 8> list_{};
  size_t count_ = 0;
};

}  // namespace

std::span<const KernelTable* const> available_tables() {
  static const Tables tables;
  return tables.all();
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
  fail(KVQ_E_UNSUPPORTED, "cpu_isa is \"%s\", this machine and build support: %s", Quoted(name).c_str(), names);
}

}  // namespace kvq::cpu
