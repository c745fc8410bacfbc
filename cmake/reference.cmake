# kvq_reference: the C API as HTML in reference/html of the build, by Doxygen.
find_program(KVQ_DOXYGEN doxygen)
mark_as_advanced(KVQ_DOXYGEN)
if(NOT KVQ_DOXYGEN)
  add_custom_target(kvq_reference
    COMMAND "${CMAKE_COMMAND}" -E echo "doxygen was not found when this was configured: install it and configure again"
    COMMAND "${CMAKE_COMMAND}" -E false)
  return()
endif()
set(kvq_reference_dir "${PROJECT_BINARY_DIR}/reference")
configure_file("${CMAKE_CURRENT_LIST_DIR}/Doxyfile.in" "${kvq_reference_dir}/Doxyfile" @ONLY)
add_custom_target(kvq_reference
  COMMAND "${KVQ_DOXYGEN}" "${kvq_reference_dir}/Doxyfile"
  COMMAND "${CMAKE_COMMAND}" -E echo "${kvq_reference_dir}/html/index.html"
  VERBATIM)
