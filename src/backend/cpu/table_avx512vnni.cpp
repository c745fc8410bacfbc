#include "backend/cpu/tables.h"

namespace kvq::cpu {

const KernelTable& avx512vnni_table() {
  static const KernelTable kTable = [] {
    KernelTable table = avx512_table();
    table.name = "avx512vnni";
    return table;
  }();
  return kTable;
}

}  // namespace kvq::cpu
