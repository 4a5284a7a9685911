package member

import (
	"crypto/hmac"
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"hash"
)

const (
	tagSize = 16
	// minKey is the shortest key: RFC 2104 section 3 discourages keys shorter than the hash, and 16 bytes from a random
	// source are what the tag can use.
	minKey = 16
	// maxKeys are the current key and the next or the previous one.
	maxKeys = 2
)

// keyring signs with its first key and accepts all of them, so that keys change without a gap: the new key is added
// second everywhere, then the two swap, then the old one is removed.
type keyring struct {
	keys []key
	sum  [sha256.Size]byte
}

type key struct {
	id   [4]byte
	hmac hash.Hash
}

func newKeyring(secrets [][]byte) (*keyring, error) {
	if len(secrets) == 0 || len(secrets) > maxKeys {
		return nil, fmt.Errorf("%d keys for the speakers' datagrams: give one, or two while they change", len(secrets))
	}
	r := &keyring{}
	for i, secret := range secrets {
		if len(secret) < minKey {
			return nil, fmt.Errorf("key %d for the speakers' datagrams has %d bytes: give at least %d random ones", i+1, len(secret), minKey)
		}
		k := key{hmac: hmac.New(sha256.New, secret)}
		k.hmac.Write([]byte("ironlb key id"))
		copy(k.id[:], k.hmac.Sum(r.sum[:0]))
		r.keys = append(r.keys, k)
	}
	if len(r.keys) == 2 && r.keys[0].id == r.keys[1].id {
		return nil, errors.New("the two keys for the speakers' datagrams are the same: give one of them")
	}
	return r, nil
}

// tag appends the tag of data to it.
func (r *keyring) tag(data []byte) []byte { return append(data, r.compute(&r.keys[0], data)...) }

func (r *keyring) compute(k *key, data []byte) []byte {
	k.hmac.Reset()
	k.hmac.Write(data)
	return k.hmac.Sum(r.sum[:0])[:tagSize]
}

func (r *keyring) find(id [4]byte) *key {
	for i := range r.keys {
		if r.keys[i].id == id {
			return &r.keys[i]
		}
	}
	return nil
}

// valid reports whether the last bytes of a datagram are the tag of the rest.
func (r *keyring) valid(k *key, datagram []byte) bool {
	at := len(datagram) - tagSize
	return subtle.ConstantTimeCompare(r.compute(k, datagram[:at]), datagram[at:]) == 1
}
