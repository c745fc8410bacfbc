//! Lets this crate's tests and examples find the libkvq.so that kvq-sys found; programs decide for themselves.
use std::env;
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let (Ok(directory), Err(_)) = (env::var("DEP_KVQ_LIBDIR"), env::var("CARGO_FEATURE_STATIC")) {
        // Cargo refuses flags for targets that a package lacks.
        for target in ["tests", "examples"].iter().filter(|target| Path::new(target).is_dir()) {
            println!("cargo:rustc-link-arg-{target}=-Wl,-rpath,{directory}");
        }
    }
}
