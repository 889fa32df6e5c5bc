# cmake -S . -B build -DCMAKE_PREFIX_PATH=$(python -c 'import executorch; print(executorch.__path__[0])')/share/cmake
cmake_minimum_required(VERSION 3.28)
project(@FILE_STEM@ LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
find_package(executorch REQUIRED CONFIG)
find_package(Threads REQUIRED)
add_executable(@FILE_STEM@ @FILE@)
target_link_libraries(@FILE_STEM@ PRIVATE executorch::runtime executorch::kernels_optimized executorch::kernels_quantized
                      executorch::backend_xnnpack executorch::threadpool Threads::Threads)
