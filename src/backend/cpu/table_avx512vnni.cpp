#include "backend/cpu/avx512vnni_tables.h"

namespace kvq::cpu {

const KernelTable& avx512vnni_table() {
  static const KernelTable kTable = [] {
    KernelTable table = avx512_table();
    table.name = "avx512vnni";
    set_avx512vnni_keys(table);
    set_avx512vnni_values(table);
    set_avx512vnni_coded_keys(table);
    set_avx512vnni_coded_values(table);
    set_avx512vnni_softmax(table);
    return table;
  }();
  return kTable;
}

}  // namespace kvq::cpu
