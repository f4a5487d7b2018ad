//! A store that is a bucket.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::path::Path;
use object_store::{ClientOptions, ObjectStoreExt, RetryConfig};

use crate::config::Bucket;
use crate::index::{hex, Digest};

const CONNECT: Duration = Duration::from_secs(3);
const REQUEST: Duration = Duration::from_secs(10);

/// The bucket.
#[derive(Debug)]
pub struct BucketStore {
    client: AmazonS3,
    prefix: String,
}

impl BucketStore {
    /// Makes a client; nothing is asked yet.
    ///
    /// # Errors
    /// What is wrong with the configuration.
    pub fn open(bucket: &Bucket) -> Result<Self, String> {
        // Another one may have been installed by whoever runs in this process.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let options = ClientOptions::new()
            .with_connect_timeout(CONNECT)
            .with_timeout(REQUEST);
        let plain = |endpoint: &String| endpoint.starts_with("http://");
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(&bucket.bucket)
            .with_region(&bucket.region)
            .with_virtual_hosted_style_request(bucket.endpoint.is_none())
            .with_client_options(options)
            .with_allow_http(bucket.endpoint.as_ref().is_some_and(plain))
            // How often and how long is decided here, by who waits.
            .with_retry(RetryConfig {
                max_retries: 0,
                ..RetryConfig::default()
            });
        if let Some(endpoint) = &bucket.endpoint {
            builder = builder.with_endpoint(endpoint);
        }
        if let Some(key) = &bucket.access_key_id {
            builder = builder.with_access_key_id(key);
        }
        if let Some(secret) = &bucket.secret_access_key {
            builder = builder.with_secret_access_key(secret);
        }
        if let Some(token) = &bucket.session_token {
            builder = builder.with_token(token);
        }
        let client = builder.build().map_err(|error| error.to_string())?;
        let prefix = bucket.prefix.trim_matches('/').to_owned();
        Ok(Self { client, prefix })
    }

    /// Bytes of a blob.
    ///
    /// # Errors
    /// What the server or the network says.
    pub async fn read(&self, blob: &Digest, offset: u64, length: usize) -> io::Result<Bytes> {
        let name = match self.prefix.as_str() {
            "" => format!("blobs/{}", hex(blob)),
            prefix => format!("{prefix}/blobs/{}", hex(blob)),
        };
        let range = offset..offset + length as u64;
        let read = self.client.get_range(&Path::from(name), range).await;
        read.map_err(io::Error::other)
    }
}
