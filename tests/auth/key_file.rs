//! Tests of keys that are read from a key file.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tokio::time::advance;
use tracing::level_filters::LevelFilter;

use super::{support::capture::Capture, *};

/// A temporary key file. `Drop` removes the file.
struct KeyFile(PathBuf);

impl KeyFile {
    fn new(name: &str, key: &str) -> Self {
        let file = Self(env::temp_dir().join(format!("tower-outbound-{name}-{}", std::process::id())));
        file.write(key);
        file
    }

    fn write(&self, key: &str) {
        fs::write(&self.0, key).unwrap();
    }
}

impl AsRef<Path> for KeyFile {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for KeyFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn changed_key_file_is_read_after_the_check_interval() {
    let file = KeyFile::new("rotates", "key-1\n");
    let server = Server::accepting("key");
    let client = client(KeySource::from_file_every(&file.0, secs(30)).unwrap(), &server);
    send(&client).await.unwrap();
    file.write("key-2\n");
    advance(secs(29)).await;
    send(&client).await.unwrap();
    advance(secs(1)).await;
    send(&client).await.unwrap();
    // Kubernetes updates a mounted secret by replacing the file.
    let new_file = KeyFile::new("rotates-new-file", "key-3");
    fs::rename(&new_file, &file).unwrap();
    advance(secs(30)).await;
    send(&client).await.unwrap();
    assert_eq!(server.keys(), ["key-1", "key-1", "key-2", "key-3"]);
}

#[tokio::test(start_paused = true)]
async fn old_key_is_kept_and_an_error_is_reported_if_the_key_file_is_unusable() {
    let file = KeyFile::new("vanishes", "key-1");
    let server = Server::accepting("key");
    let keys = KeySource::from_file(&file.0).unwrap();
    let client = client(keys.clone(), &server);
    for content in [None, Some(""), Some("two words of s3cret"), Some("key-1")] {
        match content {
            Some(content) => file.write(content),
            None => fs::remove_file(&file).unwrap(),
        }
        advance(KeySource::FILE_INTERVAL).await;
        send(&client).await.unwrap();
        let error = keys.last_error().map(|error| format!("{error} {error:?}"));
        match content {
            Some("key-1") => assert!(error.is_none(), "the key file is valid again"),
            _ => assert!(error.is_some_and(|error| error.contains("vanishes") && !error.contains("s3cret"))),
        }
    }
    assert!(server.keys().iter().all(|key| key == "key-1"));
}

#[tokio::test(start_paused = true)]
async fn key_file_is_read_immediately_after_a_401() {
    let file = KeyFile::new("rejected", "key-1");
    let server = Server::accepting("key-2");
    let client = client(KeySource::from_file_every(&file.0, secs(3_600)).unwrap(), &server);
    let response = send_with_resend(client.clone()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), server.keys().len()),
        (401, 1),
        "the file still has the rejected key, so the call returns the 401"
    );
    file.write("key-2");
    assert_eq!(
        send_with_resend(client.clone()).await.unwrap().status(),
        401,
        "the key file is read at most once a second"
    );
    advance(secs(1)).await;
    let results = run_concurrently(100, || send_with_resend(client.clone())).await;
    assert!(results.iter().all(|result| result.as_ref().unwrap().status() == 200));
}

/// The key file is a named pipe. A read of the pipe starts before the server rejects the old key, and returns the old
/// key. Before the read ends, a file with the new key replaces the pipe.
#[cfg(unix)]
#[test]
fn key_file_is_read_again_if_its_key_is_rejected_during_the_read() {
    use std::{io::Write, process::Command, thread};

    let file = KeyFile::new("outdated", "key-1");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let keys = KeySource::from_file_every(&file.0, Duration::ZERO).unwrap();
    let old = runtime.block_on(keys.current()).unwrap();
    fs::remove_file(&file).unwrap();
    assert!(Command::new("mkfifo").arg(&file.0).status().unwrap().success());

    let reader = thread::spawn({
        let keys = keys.clone();
        move || tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(keys.current())
    });
    // Opening the named pipe for writing blocks until the reader opens the pipe for reading.
    let mut pipe = fs::OpenOptions::new().write(true).open(&file).unwrap();
    assert!(keys.reject(&old));
    let mut waiting = tokio_test::task::spawn(keys.current());
    assert!(waiting.poll().is_pending());
    let new_file = KeyFile::new("outdated-new-file", "key-2");
    fs::rename(&new_file, &file).unwrap();
    pipe.write_all(b"key-1").unwrap();
    drop(pipe);
    assert_eq!(reader.join().unwrap().unwrap().expose(), "key-2");
    assert_eq!(runtime.block_on(waiting).unwrap().expose(), "key-2");
}

#[tokio::test(start_paused = true)]
async fn log_contains_each_key_change_but_only_the_first_of_repeated_failures() {
    let file = KeyFile::new("logged", "key-1");
    let keys = KeySource::from_file(&file.0).unwrap();
    let (log, _guard) = Capture::at(LevelFilter::INFO);
    let events = || ["key changed", "key refresh failed"].map(|event| log.text().matches(event).count());
    for (content, expected) in [
        (Some("key-1"), [0, 0]),
        (Some("key-2"), [1, 0]),
        (Some("key-2"), [1, 0]),
        (None, [1, 1]),
        (None, [1, 1]),
        (Some("key-2"), [1, 1]),
        (None, [1, 2]),
    ] {
        match content {
            Some(content) => file.write(content),
            None => drop(fs::remove_file(&file)),
        }
        advance(KeySource::FILE_INTERVAL).await;
        keys.current().await.unwrap();
        assert_eq!(events(), expected, "{content:?} {}", log.text());
    }
}
