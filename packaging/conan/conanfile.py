# Not run yet: see packaging/README.md.
import os

from conan import ConanFile
from conan.tools.build import check_min_cppstd
from conan.tools.cmake import CMake, CMakeDeps, CMakeToolchain, cmake_layout
from conan.tools.files import copy


class KvqConan(ConanFile):
    name = "kvq"
    version = "1.0.0"
    description = "Compressed key/value cache for language models"
    license = "Apache-2.0"
    settings = "os", "arch", "compiler", "build_type"
    options = {"shared": [True, False], "tools": [True, False], "cuda": [True, False]}
    default_options = {"shared": False, "tools": False, "cuda": False}
    package_type = "library"

    def export_sources(self):
        root = os.path.join(self.recipe_folder, "..", "..")
        for pattern in ("CMakeLists.txt", "LICENSE", "THIRD_PARTY_NOTICES", "CHANGELOG.md", "cmake/*", "cuda/*", "docs/policies/*",
                        "include/*", "models/*", "samples/*", "src/*", "tools/*"):
            copy(self, pattern, root, self.export_sources_folder)

    def validate(self):
        check_min_cppstd(self, 20)

    def layout(self):
        cmake_layout(self)

    def requirements(self):
        self.requires("eigen/3.4.0", visible=False)
        self.requires("highway/1.2.0", visible=False)
        self.requires("nlohmann_json/3.11.3", visible=False)
        self.requires("libyaml/0.2.5")
        if self.options.tools:
            for package in ("cli11/2.4.2", "openblas/0.3.28", "pcre2/10.44", "utf8proc/2.9.0"):
                self.requires(package, visible=False)

    def generate(self):
        CMakeDeps(self).generate()
        toolchain = CMakeToolchain(self)
        toolchain.cache_variables["KVQ_BUILD_TESTS"] = False
        toolchain.cache_variables["KVQ_BUILD_SAMPLES"] = bool(self.options.tools)
        toolchain.cache_variables["KVQ_CUDA"] = bool(self.options.cuda)
        toolchain.cache_variables["KVQ_HIGHWAY_INCLUDE_DIR"] = self.dependencies["highway"].cpp_info.includedir
        toolchain.generate()

    def build(self):
        cmake = CMake(self)
        cmake.configure()
        cmake.build()

    def package(self):
        CMake(self).install()

    def package_info(self):
        # Both libraries are installed, under one name: the file says which is meant.
        self.cpp_info.libs = ["kvq"] if self.options.shared else [":libkvq.a"]
        self.cpp_info.set_property("cmake_file_name", "kvq")
        self.cpp_info.set_property("cmake_target_name", "kvq::kvq" if self.options.shared else "kvq::kvq_static")
        self.cpp_info.set_property("pkg_config_name", "kvq")
        if not self.options.shared:
            self.cpp_info.system_libs = ["stdc++", "m", "pthread", "dl"]
