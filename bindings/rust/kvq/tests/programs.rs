//! Programs: the sample against the one in C, and a library that is too old.
mod common;
use common::repository;
use std::env;
use std::path::{Path, PathBuf};
use std::process::Command;

/// An example of this crate, which cargo has built beside the tests.
fn example(name: &str) -> PathBuf {
    let test = env::current_exe().unwrap();
    test.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

fn output_of(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Compiles C as a user of kvq would.
fn compile(arguments: &[&str], source: &Path, to: &Path) {
    let flags = env::var("KVQ_TEST_CFLAGS").expect("KVQ_TEST_CFLAGS: flags of the compiler for kvq");
    let mut command = Command::new(env::var_os("CC").unwrap_or_else(|| "cc".into()));
    output_of(command.args(arguments).arg(source).args(flags.split_whitespace()).arg("-o").arg(to));
}

#[test]
fn the_sample_prints_what_the_one_in_c_prints() {
    let program = example("embed_in_c");
    compile(&[], &repository().join("samples/c/embed.c"), &program);
    let expected = output_of(&mut Command::new(program));
    assert!(expected.contains("checksum"));
    assert_eq!(output_of(&mut Command::new(example("embed"))), expected);
}

#[test]
fn a_library_that_is_too_old_is_refused_with_both_versions() {
    let (source, library) = (example("old.c"), example("libold.so"));
    let text = "int kvq_api_version(void) { return 0; } const char* kvq_version_string(void) { return \"0.9.7\"; }";
    std::fs::write(&source, text).unwrap();
    compile(&["-shared", "-fPIC"], &source, &library);
    let output = Command::new(example("embed")).env("LD_PRELOAD", &library).output().unwrap();
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    for part in ["libkvq 0.9.7", "version 0 ", "version 1"] {
        assert!(said.contains(part), "\"{part}\" is not in {said}");
    }
}
