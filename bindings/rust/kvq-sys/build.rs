//! Finds libkvq: in `KVQ_DIR` if that is set, otherwise by pkg-config.
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
    let is_static = env::var_os("CARGO_FEATURE_STATIC").is_some();
    for name in ["KVQ_DIR", "PKG_CONFIG", "PKG_CONFIG_PATH", "PKG_CONFIG_LIBDIR"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    if env::var_os("DOCS_RS").is_some() {
        return; // building documentation needs no library
    }
    let found = match env::var_os("KVQ_DIR") {
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
    let file = if is_static { "libkvq.a" } else { "libkvq.so" };
    let multiarch = env::var("CARGO_CFG_TARGET_ARCH").unwrap_or_default() + "-linux-gnu";
    let candidates = ["lib".to_string(), "lib64".to_string(), format!("lib/{multiarch}")];
    let directory = candidates
        .iter()
        .map(|name| prefix.join(name))
        .find(|directory| directory.join(file).is_file())
        .ok_or_else(|| format!("KVQ_DIR is {}, but there is no {file} below it", prefix.display()))?;
    let mut names = vec!["kvq".to_string()];
    if is_static {
        let description = directory.join("pkgconfig/kvq.pc");
        let text = fs::read_to_string(&description)
            .map_err(|error| format!("cannot read {}: {error}", description.display()))?;
        let private = text.lines().find_map(|line| line.strip_prefix("Libs.private:"));
        names.extend(private.unwrap_or("").split_whitespace().filter_map(name_of));
        println!("cargo:rerun-if-changed={}", description.display());
    }
    Ok(Library { directories: vec![directory], names, include: prefix.join("include") })
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
    if !is_static && Path::new("tests").is_dir() {
        println!("cargo:rustc-link-arg-tests=-Wl,-rpath,{}", library.directories[0].display());
    }
}
