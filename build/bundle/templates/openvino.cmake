# cmake -S . -B build -DCMAKE_PREFIX_PATH=$(python -c 'import openvino; print(openvino.__path__[0])')/cmake
cmake_minimum_required(VERSION 3.20)
project(@FILE_STEM@ LANGUAGES CXX)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
find_package(OpenVINO REQUIRED COMPONENTS Runtime)
add_executable(@FILE_STEM@ @FILE@)
target_link_libraries(@FILE_STEM@ PRIVATE openvino::runtime)
