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
    assert_eq!(names.len(), 13);
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
        (
            "plan",
            vec!["--quota", "100 tokens/60s"],
            "`100 tokens/60s`: expected a quota of requests: see --tokens",
        ),
        ("plan", vec!["--tokens", "0/60s"], "--tokens `0/60s`: invalid quota limit `0`: expected "),
        ("plan", vec!["--tokens", "9 dimes/60s"], "invalid unit `dimes`: expected requests, tokens"),
        ("plan", vec!["--tokens", "9 points/60s"], "--tokens `9 points/60s`: expected a quota of tokens"),
        ("plan", vec!["--tokens", "200000000/60s"], "at most 100000000 tokens per window and 10000000 per"),
        (
            "plan",
            vec!["--tokens", "50000000/1s"],
            "at most 100000000 tokens per window and 10000000 per second",
        ),
        ("plan", vec!["--tokens=500/60s"], "--request-tokens `800`: expected a whole number from 1 to 500"),
        (
            "plan",
            vec!["--tokens=9/60s", "--request-tokens=0"],
            "--request-tokens `0`: expected a whole number",
        ),
        (
            "plan",
            vec!["--tokens=900/60s", "--estimate-error=101"],
            "--estimate-error `101`: expected a whole number from 0 to 100",
        ),
        (
            "plan",
            vec!["--estimate-error", "9"],
            "--estimate-error `9`: expected --tokens LIMIT/WINDOW as well",
        ),
        (
            "plan",
            vec!["--max-in-flight", "0"],
            "--max-in-flight `0`: expected a whole number from 1 to 10000",
        ),
        (
            "plan",
            vec!["--response-time", "2"],
            "--response-time `2`: expected a time from 40ms to 600s, such",
        ),
        ("plan", vec!["--response-time=39ms"], "--response-time `39ms`: expected a time from 40ms to 600s"),
        ("plan", vec!["--response-time=2s, burst 1"], "`2s, burst 1`: expected a time from 40ms to 600s"),
        ("plan", vec!["--quota=1000/1s", "--response-time=26s"], "`26s`: expected a time from 40ms to 25s"),
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

/// Returns the row of a strategy in the table of the example plan. The columns are the name, the sent, the accepted and
/// the rejected requests, the most requests in a window, the used quota, `%`, the most requests in flight, three waits,
/// the used tokens, `%`, and the most tokens in a window.
fn row<'a>(printed: &'a str, strategy: &str) -> Vec<&'a str> {
    let mut rows = printed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    rows.find(|row| row.first() == Some(&strategy)).unwrap()
}

#[test]
fn plan_example_shows_that_only_governor_exceeds_the_limit() {
    let strategies = ["governor", "bucket", "window", "sliding", "adaptive"];
    let (printed, svg) = plan("plan", &["--strategy", "bucket,window,sliding,adaptive"]);
    for strategy in strategies {
        let row = row(&printed, strategy);
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
    let row = row(&printed, "window");
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
fn plan_example_shows_the_tokens_that_exceed_estimates() {
    let quotas = ["--quota=500/60s", "--tokens=30000/60s", "--windows=10", "--response-time=5s"];
    let strategies = "--strategy=bucket,window,sliding,adaptive";
    for (error, most_excess) in [("--estimate-error=0", 0), ("--estimate-error=50", 2_000)] {
        let (printed, svg) = plan("tokens", &[&quotas[..], &[strategies, error]].concat());
        let percent = error.split_once('=').unwrap().1;
        let options = format!(
            "30000 tokens/60s, burst 3000, margin 1s; 800 tokens ± {percent} % per request; a response takes 5s"
        );
        assert!(printed.contains(&format!("\n{options}\n")), "{printed}");
        assert!(svg.contains(&options), "the plot does not state the options");
        for strategy in ["governor", "bucket", "window", "sliding", "adaptive"] {
            let row = row(&printed, strategy);
            let used: f64 = row[11].parse().unwrap();
            let most: u32 = row[13].strip_suffix("/30000").unwrap().parse().unwrap();
            let accepted: f64 = row[2].parse().unwrap();
            assert!((accepted * 800.0 / 3_000.0 - used).abs() < 4.0, "{strategy}: {printed}");
            match strategy {
                "governor" => assert!(used > 105.0 && most > 55_000, "{printed}"),
                _ => {
                    assert!((95.0..=100.5).contains(&used), "{strategy}: {printed}");
                    assert!((29_000..=30_000 + most_excess).contains(&most), "{strategy}: {printed}");
                }
            }
        }
    }
}

#[test]
fn plan_example_shows_whether_the_quota_or_the_requests_in_flight_limit_the_rate() {
    // Two requests in flight for 2 s are one per second. Four are more than the quota allows.
    for (max, most, used) in [("2", "60/100", "60.0"), ("4", "100/100", "98.7")] {
        let arguments = ["--max-in-flight", max, "--response-time=2s"];
        let (printed, _) = plan("in_flight", &arguments);
        assert!(printed.contains(&format!("\nat most {max} in flight; a response takes 2s\n")), "{printed}");
        for strategy in ["window", "adaptive"] {
            let row = row(&printed, strategy);
            assert_eq!([row[3], row[4], row[5], row[7]], ["0", most, used, max], "{strategy}: {printed}");
        }
        assert_eq!(row(&printed, "governor")[4..8], ["199/100", "100.0", "%", "14"], "{printed}");
    }
}

#[test]
fn plan_example_limits_tokens_and_requests_in_flight_together() {
    let arguments = ["--tokens=30000/60s", "--max-in-flight=1", "--response-time=2s", "--estimate-error=0"];
    // The quota of tokens limits the first run, and the requests in flight limit the second one.
    for (tokens, used, most) in [("1200", "98.7", "30000/30000"), ("500", "50.0", "15000/30000")] {
        let (printed, _) = plan("both", &[&arguments[..], &["--request-tokens", tokens]].concat());
        let row = row(&printed, "window");
        assert_eq!([row[7], row[11], row[13]], ["1", used, most], "{printed}");
    }
}

#[test]
fn settings_example_prints_the_sample_with_all_defaults_and_without_its_key() {
    // A variable with the prefix that is no setting of a service.
    let output =
        command("settings").arg("../src/preset/sample.toml").env("APP_ENV", "prod").output().unwrap();
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""));
    for part in ["[services.mail.retry]", "native_roots = false", "no_proxy = \"metrics.internal, "] {
        assert!(printed.contains(part), "{part} is missing: {printed}");
    }
    assert!(!printed.contains("only-for-a-test"), "{printed}");
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

#[test]
fn reload_example_applies_valid_edits_and_keeps_the_settings_after_invalid_ones() {
    let output = run("reload", &[]);
    let (printed, errors) = (text(&output.stdout), text(&output.stderr));
    assert_eq!((output.status.code(), errors.as_str()), (Some(0), ""), "{printed}");
    for expected in [
        "limit.quota = \"50/1s\"\n    reloaded\n",
        "    kept the old settings: timeout.attempt: invalid attempt timeout `120s`: expected at most 60s",
        "    kept the old settings: line 3: invalid quota limit `0`: expected at least 1\n",
        "    kept the old settings: transport: invalid transport `other settings`: expected that of the client",
        "limit.quota = []\n    reloaded\n",
        "api_key_file\n    kept the old settings: api_key_file: invalid",
        "the file of the key\n    reloaded\n",
        "\nthe server received 10 requests\n",
    ] {
        assert!(printed.contains(expected), "{expected:?} is missing: {printed}");
    }
    let seconds = |part: &str| -> f64 {
        let (_, rest) = printed.split_once(part).unwrap();
        rest.split_once(" s").unwrap().0.parse().unwrap()
    };
    // Five calls at two per second take 2 s. Without a quota, they take milliseconds.
    assert!(seconds("5 calls with 2/1s, burst 1: ") >= 2.0, "{printed}");
    assert!(seconds("5 calls with no quota: ") < 2.0, "{printed}");
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
