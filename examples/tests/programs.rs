//! Runs the examples as programs. Checks `--help`, invalid arguments, Ctrl-C and the output.
//!
//! `cargo test` builds the examples first. `cargo test --test programs` alone does not, so run `cargo build --examples`
//! before it.
#![cfg(unix)]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test")]

use std::{
    collections::BTreeMap,
    env,
    ffi::OsString,
    fs,
    io::{BufRead, BufReader, Read},
    net::TcpStream,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    time::Duration,
};

use tokio::time::Instant;
use toml::Table;

/// Returns the names of all examples in the manifest, so that the tests also cover a new example.
fn names() -> Vec<String> {
    let manifest: Table = include_str!("../Cargo.toml").parse().unwrap();
    let examples = manifest["example"].as_array().unwrap().iter();
    examples.map(|example| example["name"].as_str().unwrap().to_owned()).collect()
}

fn command(name: &str) -> Command {
    let tests = env::current_exe().unwrap();
    let path: PathBuf = tests.parent().unwrap().parent().unwrap().join("examples").join(name);
    assert!(path.exists(), "the program {} is missing: run `cargo build --examples` first", path.display());
    Command::new(path)
}

fn run(name: &str, arguments: &[&str]) -> Output {
    command(name).args(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn each_example_prints_help_and_exits_with_0() {
    let names = names();
    assert_eq!(names.len(), 12);
    for name in names {
        for flag in ["--help", "-h"] {
            let output = run(&name, &[flag]);
            let (help, errors) = (text(&output.stdout), text(&output.stderr));
            assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{name} {flag}");
            for part in ["Usage: cargo run ", &name, "--help", "second", "Exit status: 0, 1 if", "130"] {
                assert!(help.contains(part), "{name} {flag} does not print `{part}`: {help}");
            }
        }
    }
}

#[test]
fn each_example_rejects_invalid_arguments_with_exit_code_2() {
    let mut cases: Vec<(String, Vec<&str>, &str)> = Vec::new();
    for name in names() {
        cases.push((name.clone(), vec!["--no-such"], "unknown argument `--no-such`: expected "));
        cases.push((name, vec!["--no-such"], "--help"));
    }
    for (name, arguments, error) in [
        ("quickstart", vec!["--log", "3"], "`3`"),
        ("settings", vec!["one.toml", "two.toml"], "`two.toml`: expected at most one path"),
        ("shared_limit", vec!["localhost"], "`localhost`: expected --refuse, --help or the URL"),
        (
            "limiter_throughput",
            vec!["--no-such"],
            "expected --quota, --burst, --margin, --strategy, --tasks,",
        ),
        ("limiter_throughput", vec!["--tasks", "0"], "--tasks `0`: expected a whole number from 1"),
        ("limiter_throughput", vec!["--tasks"], "--tasks has no value"),
        ("limiter_throughput", vec!["--strategy", "both"], "--strategy `both`: expected token or window"),
        ("plan", vec!["--quota", "100/60"], "`60`: expected a unit after the number"),
        ("plan", vec!["--quota", "5000/1s"], "at most 10000 requests per window and 1000 per second"),
        ("plan", vec!["--windows", "0"], "--windows `0`: expected a whole number from 1 to 600000"),
        ("plan", vec!["--quota", "1/9d", "--windows", "9999"], "a whole number from 1 to 4058"),
        ("plan", vec!["--burst", "100"], "--burst `100`: invalid quota burst `100`: expected at most 99"),
        (
            "plan",
            vec!["--server", "nginx"],
            "--server `nginx`: expected token-bucket, spacing, fixed-window,",
        ),
        ("plan", vec!["--strategy", "window,both"], "--strategy `both`: expected governor, bucket, window,"),
        ("pictures", vec!["--folder"], "--folder has no value"),
        ("plan", vec!["--headers=x"], "--headers `x`: expected none, retry-after, x-rate-limit,"),
    ] {
        cases.push((name.to_owned(), arguments, error));
    }
    for (name, arguments, expected) in cases {
        let output = run(&name, &arguments);
        let errors = text(&output.stderr);
        assert_eq!((output.status.code(), text(&output.stdout).as_str()), (Some(2), ""), "{name}: {errors}");
        let (program, error) = errors.split_once(": ").unwrap();
        assert_eq!((program, errors.lines().count()), (name.as_str(), 1), "{errors}");
        assert!(error.contains(expected), "{errors}");
    }
}

/// A running example program that has printed its first line.
struct Started {
    name: &'static str,
    child: Child,
    output: BufReader<std::process::ChildStdout>,
    printed: String,
}

fn start(name: &'static str) -> Started {
    let mut child = command(name).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut printed = String::new();
    output.read_line(&mut printed).unwrap();
    Started { name, child, output, printed }
}

/// Sends SIGINT to the program. Returns the exit code and the whole output.
fn interrupt(started: Started) -> (Option<i32>, String) {
    let Started { name, child, mut output, mut printed } = started;
    let killed = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(killed.success(), "{name} ended before the signal: {printed}");
    output.read_to_string(&mut printed).unwrap();
    let ended = child.wait_with_output().unwrap();
    (ended.status.code(), format!("{printed}{}", text(&ended.stderr)))
}

#[test]
fn each_example_prints_a_partial_summary_and_exits_with_130_after_ctrl_c() {
    let programs = [
        ("compose", "requests, by status: {"),
        ("limiter_throughput", "worst window"),
        ("observe", "requests, by status: {"),
        ("quickstart", "failed calls"),
        ("websocket", " of 9 messages came back"),
        ("wrap_reqwest", "requests, by status: {"),
    ];
    for (name, summary) in programs {
        let (code, printed) = interrupt(start(name));
        assert_eq!(code, Some(130), "{name}: {printed}");
        assert!(printed.contains("interrupted after ") && printed.contains(summary), "{name}: {printed}");
    }
}

/// Runs the example shared_limit with a shell script in place of redis-server.
fn run_with_redis_server(name: &str, script: &str) -> Output {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
    fs::create_dir_all(&folder).unwrap();
    let path = folder.join("redis-server");
    fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    let paths = format!("{}:{}", folder.display(), env::var("PATH").unwrap());
    command("shared_limit")
        .env_remove("REDIS_URL")
        .env("PATH", paths)
        .env("TMPDIR", &folder)
        .output()
        .unwrap()
}

#[test]
fn shared_limit_exits_with_130_after_ctrl_c_even_if_redis_server_ends_first() {
    let output = run_with_redis_server("ends", "kill -INT $PPID; exit 1");
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), errors.as_str()), (Some(130), ""), "{printed}");
    assert!(printed.contains("interrupted after "), "{printed}");
}

#[test]
fn second_ctrl_c_ends_a_program_that_still_waits_for_redis_server() {
    // shared_limit waits up to a minute for redis-server to start. The script never starts a server and sends Ctrl-C
    // repeatedly.
    let started = Instant::now();
    let output = run_with_redis_server("hangs", "while kill -INT $PPID; do sleep 0.1; done 2>/dev/null");
    assert_eq!(output.status.code(), Some(130), "{}", text(&output.stderr));
    assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
}

#[test]
fn ctrl_c_ends_the_example_shared_limit_and_its_redis_server() {
    if Command::new("redis-server").arg("--version").output().is_err() {
        eprintln!("skipped, because redis-server was not found in PATH: `bash .ci/test` installs it");
        return;
    }
    let mut started = start("shared_limit");
    // The first row of the printed table shows that the workers have started.
    while !started.printed.contains("\n        0.0") {
        assert!(started.output.read_line(&mut started.printed).unwrap() > 0, "{}", started.printed);
    }
    let (code, printed) = interrupt(started);
    assert_eq!(code, Some(130), "{printed}");
    assert!(printed.contains("interrupted after ") && printed.contains("The server counted "), "{printed}");
    let address = printed.split_once("redis at ").unwrap().1.split_once(',').unwrap().0;
    assert!(TcpStream::connect(address).is_err(), "redis-server at {address} still runs after Ctrl-C");
}

#[test]
fn observe_example_prints_at_most_60_lines() {
    let output = run("observe", &[]);
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    assert!(printed.lines().count() <= 60, "observe printed {} lines: {printed}", printed.lines().count());
}

/// Runs the example plan with `arguments`. Returns the output and the SVG file.
fn plan(name: &str, arguments: &[&str]) -> (String, String) {
    let svg = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name).join("plan.svg");
    let output = command("plan").args(arguments).arg("--svg").arg(&svg).output().unwrap();
    let printed = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{printed}{}", text(&output.stderr));
    assert!(printed.ends_with(&format!("\nplot: {}\n", svg.display())), "{printed}");
    (printed, fs::read_to_string(svg).unwrap())
}

#[test]
fn plan_example_shows_that_only_governor_exceeds_the_limit() {
    let strategies = ["governor", "bucket", "window", "sliding", "adaptive"];
    let (printed, svg) = plan("plan", &["--strategy", "bucket,window,sliding,adaptive"]);
    for strategy in strategies {
        // The columns of the table are the name, the sent, the accepted and the rejected requests, and the most
        // requests in a window.
        let row = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let row = row.into_iter().find(|row| row.first() == Some(&strategy)).unwrap();
        let (rejected, most) = (row[3], row[4].strip_suffix("/100").unwrap());
        match strategy {
            "governor" => assert_eq!((rejected, most), ("99", "199"), "{printed}"),
            _ => {
                assert_eq!(rejected, "0", "{printed}");
                assert!((90..=100).contains(&most.parse().unwrap()), "{printed}");
            }
        }
        assert!(svg.contains(&format!("\n{strategy}\n")), "the plot has no label {strategy}");
    }
    assert!(svg.contains("\nlimit 100\n"), "the plot has no limit");
}

#[test]
fn plan_example_simulates_many_windows() {
    let (printed, _) = plan("day", &["--windows", "1440", "--strategy", "window"]);
    assert!(printed.contains("from 15s to 86415s"), "{printed}");
    let window = printed.lines().find(|line| line.starts_with("window ")).unwrap();
    let row: Vec<_> = window.split_whitespace().collect();
    // A window and its margin, 61 s, contain 100 requests.
    let sent: f64 = row[1].parse().unwrap();
    assert!((sent / 100.0 - 86_400.0 / 61.0).abs() < 1.0, "{printed}");
    assert_eq!((row[3], row[4]), ("0", "100/100"), "{printed}");
}

#[test]
fn plan_example_simulates_each_server_with_all_headers() {
    for server in ["token-bucket", "spacing", "fixed-window", "sliding-window", "clock-window", "estimate"] {
        for headers in ["retry-after", "x-rate-limit", "draft-7", "draft-10"] {
            let (printed, _) = plan(server, &["--quota=20/1s", "--server", server, "--headers", headers]);
            assert!(printed.contains(&format!("\n{server} server with {headers} headers; ")), "{printed}");
        }
    }
}

#[test]
fn settings_example_reports_the_name_of_a_file_that_cannot_be_opened() {
    let output = run("settings", &["no/such.toml"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stderr),
        "settings: cannot open `no/such.toml`: No such file or directory (os error 2)\n"
    );
}

/// Returns the names and the contents of the files in a folder.
fn files(folder: &Path) -> BTreeMap<OsString, String> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    entries.map(|entry| (entry.file_name(), fs::read_to_string(entry.path()).unwrap())).collect()
}

#[test]
fn pictures_example_writes_the_committed_pictures() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("pictures");
    let output = run("pictures", &["--folder", folder.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let (drawn, committed) = (files(&folder), files(Path::new("../src/guide/pictures")));
    assert!(drawn == committed, "the pictures are out of date: run `cargo run --example pictures`");
}

#[test]
fn pictures_have_no_blank_line_which_would_end_the_html_in_rustdoc() {
    for (name, svg) in files(Path::new("../src/guide/pictures")) {
        assert!(svg.lines().all(|line| !line.trim().is_empty()), "{name:?} has a blank line");
    }
}
