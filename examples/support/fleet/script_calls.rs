use std::{
    io::{self, Read, Write},
    net::{Ipv4Addr, TcpStream},
};

/// Returns the number of scripts that the Redis server on this port has run since the server started.
pub(crate) fn script_calls(port: u16) -> io::Result<u64> {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    stream.write_all(b"INFO commandstats\r\nQUIT\r\n")?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply)?;
    // The reply contains a line such as `cmdstat_evalsha:calls=12,usec=…`.
    let lines = reply.lines().filter_map(|line| line.strip_prefix("cmdstat_eval"));
    Ok(lines.filter_map(|line| line.split_once("calls=")?.1.split_once(',')?.0.parse::<u64>().ok()).sum())
}
