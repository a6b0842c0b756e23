use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
};

/// How often the redis on that port has run a script since it began.
pub(crate) fn questions(port: u16) -> io::Result<u64> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.write_all(b"INFO commandstats\r\nQUIT\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    // Such as `cmdstat_evalsha:calls=12,usec=…`.
    let lines = answer.lines().filter_map(|line| line.strip_prefix("cmdstat_eval"));
    Ok(lines.filter_map(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse::<u64>().ok()).sum())
}
