include(CMakePackageConfigHelpers)

set(kvq_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvq")

install(FILES "${PROJECT_SOURCE_DIR}/include/kvq.h" "${PROJECT_SOURCE_DIR}/include/kvq.hpp" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}")

# Two export sets: only users of the static library need the packages that it links to.
install(TARGETS kvq EXPORT kvqSharedTargets)
install(TARGETS kvq_static EXPORT kvqStaticTargets)
foreach(kind IN ITEMS Shared Static)
  install(EXPORT kvq${kind}Targets NAMESPACE kvq:: DESTINATION "${kvq_package_dir}")
endforeach()
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/kvqConfig.cmake.in" "${PROJECT_BINARY_DIR}/kvqConfig.cmake"
  INSTALL_DESTINATION "${kvq_package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvqConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/kvqConfig.cmake" "${PROJECT_BINARY_DIR}/kvqConfigVersion.cmake"
  DESTINATION "${kvq_package_dir}")

# pkg-config: directories relative to the file, so that an installed tree can be moved.
file(RELATIVE_PATH kvq_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" kvq_pc_prefix "${kvq_pc_prefix}")
set(kvq_pc_dl "")
foreach(library IN LISTS CMAKE_DL_LIBS) # none where the C library has dlopen
  string(APPEND kvq_pc_dl " -l${library}")
endforeach()
configure_file("${CMAKE_CURRENT_LIST_DIR}/kvq.pc.in" "${PROJECT_BINARY_DIR}/kvq.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/kvq.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(TARGET kvq_llama_cuda)
  install(TARGETS kvq_llama_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
endif()
if(TARGET kvq_cli)
  install(TARGETS kvq_cli)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/models/demo" DESTINATION "${CMAKE_INSTALL_DATADIR}/kvq/models")
endif()
