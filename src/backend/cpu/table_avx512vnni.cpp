#include "backend/cpu/avx512vnni_tables.h"

namespace kvq::cpu {
namespace {

const LinearKernels& linear_kernels() {
  static const LinearKernels kKernels = [] {
    LinearKernels kernels = avx512_byte_kernels();
    set_avx512vnni_nuq(kernels);
    set_avx512vnni_vq(kernels);
    set_avx512vnni_trellis(kernels);
    return kernels;
  }();
  return kKernels;
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
    table.linear = &linear_kernels();
    return table;
  }();
  return kTable;
}

}  // namespace kvq::cpu
