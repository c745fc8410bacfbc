# The CUDA compiler and runtime, for the plug-in and for the programs that hand it device memory.

if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(KVQ_NVCC nvcc PATHS /usr/local/cuda/bin)
  mark_as_advanced(KVQ_NVCC)
  if(NOT KVQ_NVCC)
    message(FATAL_ERROR "KVQ_CUDA is ON, but nvcc was not found on PATH or in /usr/local/cuda/bin. Give its path with "
      "-DCMAKE_CUDA_COMPILER=, or configure with -DKVQ_CUDA=OFF.")
  endif()
  set(CMAKE_CUDA_COMPILER "${KVQ_NVCC}" CACHE FILEPATH "CUDA compiler")
endif()
# Without this CMake would take nvcc's oldest. 90 without "-real" includes PTX for whatever comes later.
set(CMAKE_CUDA_ARCHITECTURES "80-real;90" CACHE STRING "GPUs to compile for")
enable_language(CUDA)
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION) # CMake before 3.26 does not know that nvcc can
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION "-std=c++20")
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
set(CMAKE_CUDA_EXTENSIONS OFF)
find_package(CUDAToolkit REQUIRED)

# For machines without a GPU, which only learn whether kernels compile and link.
option(KVQ_CUDA_QUICK "Compile kernels in a seventh of the time, for a fraction of their speed; needs nvcc 13" OFF)
if(KVQ_CUDA_QUICK AND CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 13.0)
  target_compile_options(kvq_compile_options INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:--Ofast-compile=max>")
endif()
