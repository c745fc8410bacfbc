#include "backend/cpu/dispatch/tables_avx512vnni.h"

namespace kvq::cpu {
namespace {

LinearKernels linear_kernels(const DecodedProducts& products) {
  LinearKernels kernels = avx512_byte_kernels();
  kernels.products = products;
  set_avx512vnni_nuq(kernels);
  set_avx512vnni_vq(kernels);
  set_avx512vnni_trellis(kernels);
  return kernels;
}

}  // namespace

const KernelTable& avx512vnni_table() {
  static const KernelTable kTable = [] {
    KernelTable table = avx512_table();
    table.name = "avx512vnni";
    set_avx512vnni_keys(table);
    set_avx512vnni_values(table);
    set_avx512vnni_coded_keys(table);
    set_avx512vnni_coded_values(table);
    set_avx512vnni_softmax(table);
    static const LinearKernels kLinear = linear_kernels(avx512vnni_products());
    table.linear = &kLinear;
    return table;
  }();
  return kTable;
}

const KernelTable& amx_table() {
  static const KernelTable kTable = [] {
    KernelTable table = avx512vnni_table();
    table.name = "amx";
    static const LinearKernels kLinear = linear_kernels(amx_products());
    table.linear = &kLinear;
    return table;
  }();
  return kTable;
}

}  // namespace kvq::cpu
