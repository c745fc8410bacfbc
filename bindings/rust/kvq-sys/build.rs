//! Finds libkvq: in `KVQ_DIR` if that is set, otherwise by pkg-config. Or compiles it, with the feature `bundled`.
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{self, Command};

/// Arguments for the linker.
struct Library {
    directories: Vec<PathBuf>,
    /// Names after `-l`, including libkvq's own.
    names: Vec<String>,
    include: PathBuf,
}

fn main() {
    let is_bundled = env::var_os("CARGO_FEATURE_BUNDLED").is_some();
    let is_static = is_bundled || env::var_os("CARGO_FEATURE_STATIC").is_some();
    for name in ["KVQ_DIR", "KVQ_CMAKE_ARGS", "PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // building documentation needs no library
    }
    let found = match env::var_os("KVQ_DIR") {
        _ if is_bundled => compiled(),
        Some(prefix) => below(Path::new(&prefix), is_static),
        None => by_pkg_config(is_static),
    };
    match found {
        Ok(library) => tell(&library, is_static),
        Err(reason) => {
            eprintln!("kvq-sys: {reason}");
            process::exit(1);
        }
    }
}

fn below(prefix: &Path, is_static: bool) -> Result<Library, String> {
    let file = match (target("OS").as_str(), target("ENV").as_str()) {
        _ if is_static => "libkvq.a",
        ("windows", "msvc") => "kvq.lib",
        ("windows", _) => "libkvq.dll.a",
        ("macos", _) => "libkvq.dylib",
        _ => "libkvq.so",
    };
    let multiarch = target("ARCH") + "-linux-gnu";
    let candidates = ["lib".to_string(), "lib64".to_string(), format!("lib/{multiarch}")];
    let directory = candidates
        .iter()
        .map(|name| prefix.join(name))
        .find(|directory| directory.join(file).is_file())
        .ok_or_else(|| format!("KVQ_DIR is {}, but there is no {file} below it", prefix.display()))?;
    let mut names = vec!["kvq".to_string()];
    if is_static {
        names.extend(private_names(&directory.join("pkgconfig/kvq.pc"))?);
    }
    Ok(Library { directories: vec![directory], names, include: prefix.join("include") })
}

/// A property of the system to compile for.
fn target(property: &str) -> String {
    env::var(format!("CARGO_CFG_TARGET_{property}")).unwrap_or_default()
}

/// What libkvq.a needs, by its description for pkg-config.
fn private_names(description: &Path) -> Result<Vec<String>, String> {
    let text =
        fs::read_to_string(description).map_err(|error| format!("cannot read {}: {error}", description.display()))?;
    let private = text.lines().find_map(|line| line.strip_prefix("Libs.private:"));
    println!("cargo:rerun-if-changed={}", description.display());
    Ok(private.unwrap_or("").split_whitespace().filter_map(name_of).collect())
}

/// Compiles libkvq.a, with libyaml in it, from the sources in the published crate or else from the repository around this
/// one. `KVQ_CMAKE_ARGS` has further options of CMake, which reads others from its environment, such as
/// `CMAKE_TOOLCHAIN_FILE`.
fn compiled() -> Result<Library, String> {
    let crate_folder = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let published = crate_folder.join("kvq");
    let source = if published.is_dir() { published } else { crate_folder.join("../../..") };
    let build = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("kvq");
    let settings =
        ["-DCMAKE_BUILD_TYPE=Release", "-DKVQ_BUNDLED=ON", "-DKVQ_BUILD_TESTS=OFF", "-DKVQ_BUILD_SAMPLES=OFF"];
    let more = env::var("KVQ_CMAKE_ARGS").unwrap_or_default();
    let more = more.split_whitespace();
    cmake(Command::new("cmake").arg("-S").arg(&source).arg("-B").arg(&build).args(settings).args(more))?;
    let jobs = env::var("NUM_JOBS").unwrap_or_else(|_| "1".to_string());
    cmake(Command::new("cmake").arg("--build").arg(&build).args(["--target", "kvq_static", "--parallel", &jobs]))?;
    for folder in ["CMakeLists.txt", "cmake", "include", "src"] {
        println!("cargo:rerun-if-changed={}", source.join(folder).display());
    }
    let mut names = vec!["kvq".to_string()];
    names.extend(private_names(&build.join("kvq.pc"))?);
    Ok(Library { directories: vec![build.join("lib")], names, include: source.join("include") })
}

/// Its output goes to standard error, since cargo reads the other.
fn cmake(command: &mut Command) -> Result<(), String> {
    let output = command.output().map_err(|error| format!("cannot run cmake: {error}"))?;
    if output.status.success() {
        return Ok(());
    }
    let (said, failed) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    Err(format!("cmake cannot compile the library:\n{said}{failed}"))
}

/// The library that a linker flag names.
fn name_of(flag: &str) -> Option<String> {
    match flag {
        "-pthread" => Some("pthread".to_string()),
        _ => flag.strip_prefix("-l").map(str::to_string),
    }
}

fn by_pkg_config(is_static: bool) -> Result<Library, String> {
    let flags = pkg_config(if is_static { &["--static", "--libs"] } else { &["--libs"] })?;
    let mut directories: Vec<PathBuf> =
        flags.split_whitespace().filter_map(|flag| flag.strip_prefix("-L")).map(PathBuf::from).collect();
    // pkg-config omits the linker's default directories, but rustc looks for static libraries itself.
    directories.push(PathBuf::from(pkg_config(&["--variable=libdir"])?.trim()));
    directories.dedup();
    let include = PathBuf::from(pkg_config(&["--variable=includedir"])?.trim());
    Ok(Library { directories, names: flags.split_whitespace().filter_map(name_of).collect(), include })
}

fn pkg_config(arguments: &[&str]) -> Result<String, String> {
    let program = env::var_os("PKG_CONFIG").unwrap_or_else(|| "pkg-config".into());
    let output = Command::new(&program).args(arguments).arg("kvq").output().map_err(|error| {
        let program = program.to_string_lossy();
        format!("cannot run {program}: {error}. Set KVQ_DIR to where kvq is installed.")
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    Err(format!("{said}Set KVQ_DIR to where kvq is installed, or PKG_CONFIG_PATH to its lib/pkgconfig."))
}

fn tell(library: &Library, is_static: bool) {
    for directory in &library.directories {
        println!("cargo:rustc-link-search=native={}", directory.display());
    }
    for name in &library.names {
        let kind = if is_static && name == "kvq" { "static" } else { "dylib" };
        println!("cargo:rustc-link-lib={kind}={name}");
    }
    // For dependents: DEP_KVQ_LIBDIR and DEP_KVQ_INCLUDE.
    println!("cargo:libdir={}", library.directories[0].display());
    println!("cargo:include={}", library.include.display());
    // For this crate's own tests. Cargo refuses the flag in a package without them.
    if !is_static && target("OS") != "windows" && Path::new("tests").is_dir() {
        println!("cargo:rustc-link-arg-tests=-Wl,-rpath,{}", library.directories[0].display());
    }
}
