//! Lets this crate's tests and examples find the libkvq.so that kvq-sys found; programs decide for themselves.
use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    let is_static = ["STATIC", "BUNDLED"].iter().any(|name| env::var_os(format!("CARGO_FEATURE_{name}")).is_some());
    let is_windows = env::var_os("CARGO_CFG_WINDOWS").is_some();
    if let (Ok(directory), false) = (env::var("DEP_KVQ_LIBDIR"), is_static || is_windows) {
        // Cargo refuses flags for targets that a package lacks.
        for target in ["tests", "examples"].iter().filter(|target| Path::new(target).is_dir()) {
            println!("cargo:rustc-link-arg-{target}=-Wl,-rpath,{directory}");
        }
    }
}
