use std::{
    env, fs,
    path::{Path, PathBuf},
};

use tokio::time::advance;
use tower_outbound::preset;

use super::*;

/// A key file for one test, which removes it at its end.
struct Secret(PathBuf);

impl Secret {
    fn new(name: &str, key: &str) -> Self {
        let secret = Self(env::temp_dir().join(format!("tower-outbound-{name}-{}", std::process::id())));
        secret.write(key);
        secret
    }

    fn write(&self, key: &str) {
        fs::write(&self.0, key).unwrap();
    }
}

impl AsRef<Path> for Secret {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Secret {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[tokio::test(start_paused = true)]
async fn reads_a_changed_file_after_the_interval() {
    let secret = Secret::new("rotates", "key-1\n");
    let server = Server::accepting("key");
    let client = client(KeySource::from_file_every(&secret.0, secs(30)).unwrap(), &server);
    send(&client).await.unwrap();
    secret.write("key-2\n");
    advance(secs(29)).await;
    send(&client).await.unwrap();
    advance(secs(1)).await;
    send(&client).await.unwrap();
    // A mounted secret changes like this: another file replaces it.
    let next = Secret::new("rotates-next", "key-3");
    fs::rename(&next, &secret).unwrap();
    advance(secs(30)).await;
    send(&client).await.unwrap();
    assert_eq!(server.keys(), ["key-1", "key-1", "key-2", "key-3"]);
}

#[tokio::test(start_paused = true)]
async fn keeps_the_old_key_and_reports_an_error_if_the_file_is_missing_or_invalid() {
    let secret = Secret::new("vanishes", "key-1");
    let server = Server::accepting("key");
    let keys = KeySource::from_file(&secret.0).unwrap();
    let client = client(keys.clone(), &server);
    for broken in [None, Some(""), Some("two words of s3cret"), Some("key-1")] {
        match broken {
            Some(content) => secret.write(content),
            None => fs::remove_file(&secret).unwrap(),
        }
        advance(KeySource::FILE_INTERVAL).await;
        send(&client).await.unwrap();
        let error = keys.last_error().map(|error| format!("{error} {error:?}"));
        match broken {
            Some("key-1") => assert!(error.is_none(), "valid again"),
            _ => assert!(error.is_some_and(|error| error.contains("vanishes") && !error.contains("s3cret"))),
        }
    }
    assert!(server.keys().iter().all(|key| key == "key-1"));
}

#[tokio::test(start_paused = true)]
async fn reads_the_file_immediately_after_a_401() {
    let secret = Secret::new("refused", "key-1");
    let server = Server::accepting("key-2");
    let client = client(KeySource::from_file_every(&secret.0, secs(3_600)).unwrap(), &server);
    let response = send_again(client.clone()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), server.keys().len()),
        (401, 1),
        "the file has the same key, so the 401 is returned"
    );
    secret.write("key-2");
    assert_eq!(
        send_again(client.clone()).await.unwrap().status(),
        401,
        "the file is read at most once a second"
    );
    advance(secs(1)).await;
    let ended = together(100, || send_again(client.clone())).await;
    assert!(ended.iter().all(|ended| ended.as_ref().unwrap().status() == 200));
}

#[test]
fn rejects_a_missing_file_at_creation() {
    assert_eq!(KeySource::from_file("no/such/file").unwrap_err().field(), "api key");
    let preset = preset::currency_rates("https://host").unwrap().with_key_file("no/such/file");
    assert!(preset.layer().unwrap_err().to_string().contains("no/such/file"));
}

/// A request that is rejected while another one reads the file waits for the new key. A pipe makes the read slow.
#[cfg(unix)]
#[test]
fn requests_rejected_while_the_file_is_read_get_the_new_key() {
    use std::{io::Write, process::Command, sync::mpsc, thread};

    let secret = Secret::new("slow", "key-1");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let keys = KeySource::from_file(&secret.0).unwrap();
    let old = runtime.block_on(keys.current()).unwrap();
    fs::remove_file(&secret).unwrap();
    assert!(Command::new("mkfifo").arg(&secret.0).status().unwrap().success());

    let (told, hear) = mpsc::channel();
    let refused = |told: mpsc::Sender<ApiKey>| {
        let (keys, old) = (keys.clone(), old.clone());
        thread::spawn(move || {
            assert!(keys.reject(&old));
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            told.send(runtime.block_on(keys.current()).unwrap())
        })
    };
    let first = refused(told.clone());
    // Opening the pipe blocks until the first request reads it.
    let mut pipe = fs::OpenOptions::new().write(true).open(&secret).unwrap();
    let second = refused(told);
    // The second request must not get a key before the first one has read it.
    assert!(hear.recv_timeout(millis(50)).is_err());
    pipe.write_all(b"key-2").unwrap();
    drop(pipe);
    for key in [hear.recv().unwrap(), hear.recv().unwrap()] {
        assert_eq!(key.expose(), "key-2");
    }
    first.join().unwrap().unwrap();
    second.join().unwrap().unwrap();
}

/// A pipe gives the old key to a read that began before the rejection. The file then has another key.
#[cfg(unix)]
#[test]
fn reads_the_file_again_if_its_key_is_rejected_while_it_is_read() {
    use std::{io::Write, process::Command, thread};

    let secret = Secret::new("outdated", "key-1");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let keys = KeySource::from_file_every(&secret.0, Duration::ZERO).unwrap();
    let old = runtime.block_on(keys.current()).unwrap();
    fs::remove_file(&secret).unwrap();
    assert!(Command::new("mkfifo").arg(&secret.0).status().unwrap().success());

    let reader = thread::spawn({
        let keys = keys.clone();
        move || tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(keys.current())
    });
    // Opens as soon as the reader has opened its end.
    let mut pipe = fs::OpenOptions::new().write(true).open(&secret).unwrap();
    assert!(keys.reject(&old));
    let mut waiting = tokio_test::task::spawn(keys.current());
    assert!(waiting.poll().is_pending());
    let next = Secret::new("outdated-next", "key-2");
    fs::rename(&next, &secret).unwrap();
    pipe.write_all(b"key-1").unwrap();
    drop(pipe);
    assert_eq!(reader.join().unwrap().unwrap().expose(), "key-2");
    assert_eq!(runtime.block_on(waiting).unwrap().expose(), "key-2");
}
