//! That nothing of the header is missing here.
mod common;
use common::repository;
use std::fs;
use std::path::Path;

/// The text of all Rust files below a folder.
fn text_below(folder: &Path) -> String {
    let mut text = String::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            text += &text_below(&path);
        } else if path.extension().map_or(false, |extension| extension == "rs") && !path.ends_with("docs.rs") {
            text += &fs::read_to_string(path).unwrap();
        }
    }
    text
}

#[test]
fn every_function_of_the_header_is_declared_and_every_stable_one_called() {
    let root = repository();
    let api = fs::read_to_string(root.join("bindings/kvq-api.json")).unwrap();
    let functions = api.split("\"functions\": [").nth(1).expect("kvq-api.json lists functions");
    let functions: Vec<&str> = functions.split("\n  {\n").skip(1).collect();
    let name_of = |function: &&str| -> Option<String> {
        Some(function.lines().find_map(|line| line.strip_prefix("   \"name\": \"")?.strip_suffix("\","))?.to_string())
    };
    let names: Vec<String> = functions.iter().filter_map(name_of).collect();
    let stable = |function: &&&str| function.contains("\n   \"experimental\": false");
    let stable: Vec<String> = functions.iter().filter(stable).filter_map(name_of).collect();
    assert!(stable.len() > 70 && names.len() > stable.len() && stable.iter().any(|name| name == "kvq_attend"));
    let declared = fs::read_to_string(root.join("bindings/rust/kvq-sys/src/lib.rs")).unwrap();
    for name in names {
        assert!(declared.contains(&format!("pub fn {name}(")), "kvq-sys does not declare {name}");
    }
    let used = text_below(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/src")))
        + &text_below(Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests")));
    for name in stable {
        let is_used = used.match_indices(&name).any(|(at, _)| {
            let around = |c: Option<char>| !c.map_or(false, |c| c.is_alphanumeric() || c == '_');
            let is_comment = used[..at].ends_with("header!(");
            around(used[..at].chars().last()) && around(used[at + name.len()..].chars().next()) && !is_comment
        });
        assert!(is_used, "nothing calls {name}");
    }
}
