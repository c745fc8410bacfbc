include(CMakePackageConfigHelpers)

set(kvq_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvq")
set(kvq_data_dir "${CMAKE_INSTALL_DATADIR}/kvq")

# `cmake --install` installs every component; --component takes one: runtime, development, program, models, samples.
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" "${PROJECT_SOURCE_DIR}/THIRD_PARTY_NOTICES"
  DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT runtime)
if(NOT EMSCRIPTEN) # where it is the static library
  install(TARGETS kvq EXPORT kvqTargets
    RUNTIME COMPONENT runtime # these two: Windows' DLL and what programs link for it
    ARCHIVE COMPONENT development
    LIBRARY COMPONENT runtime NAMELINK_COMPONENT development)
endif()
install(TARGETS kvq_static EXPORT kvqTargets ARCHIVE COMPONENT development)
if(MINGW)
  install(FILES "$<TARGET_LINKER_FILE_DIR:kvq>/kvq.lib" DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT development OPTIONAL)
endif()
if(TARGET kvq_cuda)
  install(TARGETS kvq_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT runtime)
endif()

install(FILES "${PROJECT_SOURCE_DIR}/bindings/kvq-api.json" DESTINATION "${kvq_data_dir}" COMPONENT development)
install(FILES "${PROJECT_SOURCE_DIR}/include/kvq.h" "${PROJECT_SOURCE_DIR}/include/kvq.hpp"
  DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT development)
install(EXPORT kvqTargets NAMESPACE kvq:: DESTINATION "${kvq_package_dir}" COMPONENT development)
configure_package_config_file("${CMAKE_CURRENT_LIST_DIR}/kvqConfig.cmake.in" "${PROJECT_BINARY_DIR}/kvqConfig.cmake"
  INSTALL_DESTINATION "${kvq_package_dir}" NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/kvqConfigVersion.cmake" COMPATIBILITY SameMajorVersion)
install(FILES "${PROJECT_BINARY_DIR}/kvqConfig.cmake" "${PROJECT_BINARY_DIR}/kvqConfigVersion.cmake"
  DESTINATION "${kvq_package_dir}" COMPONENT development)

# pkg-config: directories relative to the file, so that an installed tree can be moved.
file(RELATIVE_PATH kvq_pc_prefix "/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/")
string(REGEX REPLACE "/$" "" kvq_pc_prefix "${kvq_pc_prefix}")
set(kvq_pc_dl "")
foreach(library IN LISTS CMAKE_DL_LIBS) # none where the C library has dlopen
  string(APPEND kvq_pc_dl " -l${library}")
endforeach()
if(WIN32)
  string(APPEND kvq_pc_dl " -lsynchronization")
endif()
set(kvq_pc_yaml " -lyaml")
if(KVQ_BUNDLED)
  set(kvq_pc_yaml "")
endif()
configure_file("${CMAKE_CURRENT_LIST_DIR}/kvq.pc.in" "${PROJECT_BINARY_DIR}/kvq.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/kvq.pc" DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig" COMPONENT development)

if(TARGET kvq_llama_cuda)
  install(TARGETS kvq_llama_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT program)
endif()
if(TARGET kvq_cli)
  install(TARGETS kvq_cli RUNTIME COMPONENT program)
  if(NOT CMAKE_CROSSCOMPILING)
    install(FILES "${PROJECT_BINARY_DIR}/kvq.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT program)
  endif()
  set(KVQ_ZSH_DIR "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" CACHE STRING "Where zsh looks for completions")
  set(completions "${PROJECT_SOURCE_DIR}/packaging/completions")
  install(FILES "${completions}/kvq.bash" RENAME kvq
    DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT program)
  install(FILES "${completions}/_kvq" DESTINATION "${KVQ_ZSH_DIR}" COMPONENT program)
  install(FILES "${completions}/kvq.fish"
    DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT program)
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/models/demo" DESTINATION "${kvq_data_dir}/models" COMPONENT models)
endif()
install(DIRECTORY "${PROJECT_SOURCE_DIR}/docs/policies" DESTINATION "${kvq_data_dir}" COMPONENT samples)
install(DIRECTORY "${PROJECT_SOURCE_DIR}/samples/c" "${PROJECT_SOURCE_DIR}/samples/cpp" DESTINATION "${kvq_data_dir}/samples" COMPONENT samples)
