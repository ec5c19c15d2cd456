//! One keyed AEAD: AES in CCM or GCM with a 12-byte nonce and a 16-byte tag.

use aes::{Aes128, Aes192, Aes256};
use aes_gcm::AesGcm;
use ccm::aead::{AeadInOut, KeyInit};
use ccm::consts::{U12, U16};

use super::{CryptError, CryptSuite, IV_BYTES, MAC_BYTES};

type Gcm<A> = AesGcm<A, U12>;
type Ccm<A> = ccm::Ccm<A, U16, U12>;

/// A cipher with its key schedule. The schedule is wiped when dropped.
pub(super) enum Cipher {
    Ccm128(Ccm<Aes128>),
    Ccm192(Ccm<Aes192>),
    Ccm256(Ccm<Aes256>),
    Gcm128(Gcm<Aes128>),
    Gcm192(Gcm<Aes192>),
    Gcm256(Gcm<Aes256>),
}

/// Calls the method on whichever cipher it is.
macro_rules! each {
    ($self:expr, $cipher:ident => $call:expr) => {
        match $self {
            Cipher::Ccm128($cipher) => $call,
            Cipher::Ccm192($cipher) => $call,
            Cipher::Ccm256($cipher) => $call,
            Cipher::Gcm128($cipher) => $call,
            Cipher::Gcm192($cipher) => $call,
            Cipher::Gcm256($cipher) => $call,
        }
    };
}

/// CCM with a 12-byte nonce has 3 bytes left for the length.
const CCM_DATA_BYTES_MAX: usize = (1 << 24) - 1;

impl Cipher {
    /// Keys the suite's cipher. `key` has the suite's length.
    pub(super) fn new(suite: CryptSuite, key: &[u8]) -> Result<Self, CryptError> {
        let made = match suite {
            CryptSuite::Aes128Ccm => Ccm::new_from_slice(key).map(Self::Ccm128),
            CryptSuite::Aes192Ccm => Ccm::new_from_slice(key).map(Self::Ccm192),
            CryptSuite::Aes256Ccm => Ccm::new_from_slice(key).map(Self::Ccm256),
            CryptSuite::Aes128Gcm => Gcm::new_from_slice(key).map(Self::Gcm128),
            CryptSuite::Aes192Gcm => Gcm::new_from_slice(key).map(Self::Gcm192),
            CryptSuite::Aes256Gcm => Gcm::new_from_slice(key).map(Self::Gcm256),
        };
        let expected = suite.key_bytes();
        made.map_err(|_| CryptError::KeyLength { format: suite.name(), found: key.len(), expected })
    }

    /// Encrypts `data` in place; returns the MAC over it and `extra`.
    pub(super) fn seal(
        &self,
        iv: &[u8; IV_BYTES],
        extra: &[u8],
        data: &mut [u8],
    ) -> Result<[u8; MAC_BYTES], CryptError> {
        self.check_length(data)?;
        let too_long = CryptError::TooLong(data.len());
        each!(self, cipher => cipher.encrypt_inout_detached(iv.into(), extra, data.into()))
            .map(Into::into)
            .map_err(|_| too_long)
    }

    /// Decrypts `data` in place if `mac` is that of it and `extra`.
    pub(super) fn open(
        &self,
        iv: &[u8; IV_BYTES],
        extra: &[u8],
        data: &mut [u8],
        mac: &[u8; MAC_BYTES],
    ) -> Result<(), CryptError> {
        self.check_length(data)?;
        each!(self, cipher => cipher.decrypt_inout_detached(iv.into(), extra, data.into(), mac.into()))
            .map_err(|_| CryptError::Authentication)
    }

    fn check_length(&self, data: &[u8]) -> Result<(), CryptError> {
        let is_ccm = matches!(self, Self::Ccm128(_) | Self::Ccm192(_) | Self::Ccm256(_));
        if is_ccm && data.len() > CCM_DATA_BYTES_MAX { Err(CryptError::TooLong(data.len())) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    fn check(suite: CryptSuite, key: &str, iv: &str, extra: &str, plain: &str, sealed: &str, mac: &str) {
        let cipher = Cipher::new(suite, &hex(key)).unwrap();
        let iv: [u8; IV_BYTES] = hex(iv).try_into().unwrap();
        let (extra, plain, sealed, mac) = (hex(extra), hex(plain), hex(sealed), hex(mac));
        let mut data = plain.clone();
        assert_eq!(cipher.seal(&iv, &extra, &mut data).unwrap().as_slice(), mac);
        assert_eq!(data, sealed);
        let mac: [u8; MAC_BYTES] = mac.try_into().unwrap();
        cipher.open(&iv, &extra, &mut data, &mac).unwrap();
        assert_eq!(data, plain);
        let mut wrong = mac;
        wrong[15] ^= 1;
        assert_eq!(cipher.open(&iv, &extra, &mut sealed.clone(), &wrong), Err(CryptError::Authentication));
    }

    // Test cases 4, 10 and 16 of the GCM specification (McGrew and Viega).
    const PLAIN: &str = "d9313225f88406e5a55909c5aff5269a86a7a9531534f7da2e4c303d8a318a721c3c0c95956809532fcf0e2449a6b525\
                         b16aedf5aa0de657ba637b39";
    const EXTRA: &str = "feedfacedeadbeeffeedfacedeadbeefabaddad2";
    const IV: &str = "cafebabefacedbaddecaf888";

    #[test]
    fn gcm_matches_the_specifications_vectors() {
        let key = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
        check(
            CryptSuite::Aes128Gcm,
            &key[..32],
            IV,
            EXTRA,
            PLAIN,
            "42831ec2217774244b7221b784d0d49ce3aa212f2c02a4e035c17e2329aca12e21d514b25466931c7d8f6a5aac84aa051ba30b396a0a\
             ac973d58e091",
            "5bc94fbc3221a5db94fae95ae7121a47",
        );
        check(
            CryptSuite::Aes192Gcm,
            &key[..48],
            IV,
            EXTRA,
            PLAIN,
            "3980ca0b3c00e841eb06fac4872a2757859e1ceaa6efd984628593b40ca1e19c7d773d00c144c525ac619d18c84a3f4718e2448b2fe3\
             24d9ccda2710",
            "2519498e80f1478f37ba55bd6d27618c",
        );
        check(
            CryptSuite::Aes256Gcm,
            key,
            IV,
            EXTRA,
            PLAIN,
            "522dc1f099567d07f47f37a32a84427d643a8cdcbfe5c0c97598a2bd2555d1aa8cb08e48590dbb3da7b08b1056828838c5f61e6393ba\
             7a0abcc9f662",
            "76fc6ece0f4e1768cddf8853bb2d551b",
        );
    }

    #[test]
    fn ccm_matches_an_independent_implementation() {
        // Computed with Python's `cryptography` (OpenSSL) from the inputs of the GCM vectors.
        let key = "feffe9928665731c6d6a8f9467308308feffe9928665731c6d6a8f9467308308";
        for (suite, digits, sealed, mac) in [
            (
                CryptSuite::Aes128Ccm,
                32,
                "0893e94b9148801af0f73426abb00e3ca49bf09d79a20127a7eb1926fa89053787ff02d07d71813b885b85e7f96c4eedf420db126a0451ce13bd41ba",
                "0238c326b47b34f78f659e751096cd22",
            ),
            (
                CryptSuite::Aes192Ccm,
                48,
                "928a07b18b0c0e78df4db7390636733005932b62c051ff75d697850add8f71f391f61cbc7174c01e7ab35b27d4f2d6368e1ba5595b048a388cf39cce",
                "131c50b012e4e0c8366899974644a726",
            ),
            (
                CryptSuite::Aes256Ccm,
                64,
                "c5cccc57f32343875b5b95f98869ae19769c5e3a0dd458f949fd7701ee81615d7bcb73207c692d816ff9ace558b8b6364376462bca63ea887c3ca82e",
                "626254613f2c9851cb2233929dbbd4b1",
            ),
        ] {
            check(suite, &key[..digits], IV, EXTRA, PLAIN, sealed, mac);
        }
    }

    #[test]
    fn ccm_refuses_what_its_length_field_cannot_hold() {
        for suite in [CryptSuite::Aes128Ccm, CryptSuite::Aes192Ccm, CryptSuite::Aes256Ccm] {
            let cipher = Cipher::new(suite, &vec![1; suite.key_bytes()]).unwrap();
            let mut data = vec![0; 1 << 24];
            assert_eq!(cipher.seal(&[0; IV_BYTES], &[], &mut data), Err(CryptError::TooLong(1 << 24)));
        }
        assert!(Cipher::new(CryptSuite::Aes192Gcm, &[0; 32]).is_err());
    }
}
