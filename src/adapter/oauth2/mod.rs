//! OAuth 2 access tokens as the keys of a service.

mod client_credentials;
mod token_response;

pub use self::client_credentials::ClientCredentials;
