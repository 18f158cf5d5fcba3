package payload

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"

	"golang.org/x/crypto/chacha20poly1305"

	"github.com/holdpoint/holdpoint"
)

// Sealed bytes are: the format's version, a random nonce of 24 bytes, the ciphertext with its tag
// (XChaCha20-Poly1305, whose nonces may be random for as long as a key lives).
const (
	sealVersion = 1
	keyBytes    = chacha20poly1305.KeySize
	sealHeader  = 1 + chacha20poly1305.NonceSizeX
)

// What a label is prefixed with, so that a wrapped key is never taken for content or the other way round.
const (
	purposeWrap = "holdpoint/wrap/1\x00"
	purposeSeal = "holdpoint/seal/1\x00"
)

// hidden is what every key prints as.
const hidden = "[key]"

// Master is the instance's key. It only wraps other keys. It does not show itself.
type Master struct{ raw [keyBytes]byte }

// NewMaster takes the 32 bytes of the secret key file. Anything else is refused.
func NewMaster(raw []byte) (*Master, error) {
	if len(raw) != keyBytes {
		return nil, holdpoint.Errorf(holdpoint.CodeInternal, "The secret key has %d bytes; it must have exactly %d.", len(raw), keyBytes)
	}
	return &Master{raw: [keyBytes]byte(raw)}, nil
}

// NewKey makes a fresh 256-bit key and the wrapped form to store. The label says whose key it is ("run:tenant:id"); only
// the same label unwraps it.
func (m *Master) NewKey(label string) (k Key, wrapped []byte, err error) {
	root := make([]byte, keyBytes)
	_, _ = rand.Read(root) // crypto/rand ends the program rather than return an error
	k, err = deriveKey(root)
	if err != nil {
		return Key{}, nil, err
	}
	return k, seal(m.raw, purposeWrap+label, root), nil
}

// Unwrap opens what NewKey wrapped. It fails if the master key, the label or a single bit differs.
func (m *Master) Unwrap(label string, wrapped []byte) (Key, error) {
	root, err := open(m.raw, purposeWrap+label, wrapped)
	if err != nil || len(root) != keyBytes {
		return Key{}, holdpoint.Errorf(holdpoint.CodeInternal,
			"A stored key cannot be unwrapped; start with the secret key that this store was made with.").Wrap(err)
	}
	return deriveKey(root)
}

// String hides the key.
func (m *Master) String() string { return hidden }

// Format hides the key from every verb of fmt.
func (m *Master) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// LogValue hides the key from logs.
func (m *Master) LogValue() slog.Value { return slog.StringValue(hidden) }

// Key seals the content of one owner (a run, a tenant), indexes it, and mints provider keys. Each use has a key of its
// own, derived by HKDF-SHA256. A Key comes from Master only; the zero value opens nothing and panics on every other use
// (fail closed: nothing is ever sealed or indexed under a known key). It does not show itself.
type Key struct {
	valid                 bool
	seal, index, provider [keyBytes]byte
}

func deriveKey(root []byte) (Key, error) {
	k := Key{valid: true}
	for purpose, into := range map[string]*[keyBytes]byte{"seal": &k.seal, "index": &k.index, "provider": &k.provider} {
		b, err := hkdf.Expand(sha256.New, root, "holdpoint/"+purpose+"/1", keyBytes)
		if err != nil {
			return Key{}, holdpoint.Errorf(holdpoint.CodeInternal, "A key cannot be derived on this machine.").Wrap(err)
		}
		copy(into[:], b)
	}
	return k, nil
}

func (k Key) mustBeValid() {
	if !k.valid {
		panic("payload: use of the zero Key")
	}
}

// Seal encrypts plain. The label says what it is ("payload", "effect:ID"); only the same label opens it, so that sealed
// values cannot be swapped in the store. Each call uses a random nonce and gives other bytes. nil stays nil; empty does
// not.
func (k Key) Seal(label string, plain []byte) []byte {
	k.mustBeValid()
	if plain == nil {
		return nil
	}
	return seal(k.seal, purposeSeal+label, plain)
}

// Open decrypts what Seal made under the same label. nil stays nil. It fails if key, label or a single bit differs.
func (k Key) Open(label string, sealed []byte) ([]byte, error) {
	if sealed == nil {
		return nil, nil
	}
	if !k.valid {
		return nil, errUnopened(nil)
	}
	return open(k.seal, purposeSeal+label, sealed)
}

// Index is the hex HMAC-SHA256 of parts, for looking sealed values up. Different lists of parts have different indexes.
func (k Key) Index(parts ...string) string {
	k.mustBeValid()
	return hex.EncodeToString(mac(k.index, parts))
}

// providerAlphabet survives every provider: header, URL, reference field, mail address.
var providerAlphabet = base32.NewEncoding("abcdefghijklmnopqrstuvwxyz234567").WithPadding(base32.NoPadding)

// ProviderKey is the key and reference that the provider sees for one effect: base32, lower case, of an HMAC-SHA256 over
// the four parts, cut to limit characters; limit 0 (or less) leaves all 52. Called on the tenant's effect key, it is the same
// for every attempt, after a restore and after a redelivery, and nobody else can guess it.
func (k Key) ProviderKey(tenant, workflow, runKey, slot string, limit int) string {
	k.mustBeValid()
	s := providerAlphabet.EncodeToString(mac(k.provider, []string{tenant, workflow, runKey, slot}))
	if limit > 0 && limit < len(s) {
		return s[:limit]
	}
	return s
}

// String hides the key.
func (k Key) String() string { return hidden }

// Format hides the key from every verb of fmt.
func (k Key) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, hidden) }

// LogValue hides the key from logs.
func (k Key) LogValue() slog.Value { return slog.StringValue(hidden) }

func mac(key [keyBytes]byte, parts []string) []byte {
	h := hmac.New(sha256.New, key[:])
	h.Write(lengthPrefixed(parts))
	return h.Sum(nil)
}

func seal(key [keyBytes]byte, label string, plain []byte) []byte {
	aead, err := chacha20poly1305.NewX(key[:])
	if err != nil {
		panic(err) // the length is fixed
	}
	out := make([]byte, sealHeader, sealHeader+len(plain)+aead.Overhead())
	out[0] = sealVersion
	_, _ = rand.Read(out[1:])
	return aead.Seal(out, out[1:], plain, []byte(label))
}

func open(key [keyBytes]byte, label string, sealed []byte) ([]byte, error) {
	if len(sealed) < sealHeader || sealed[0] != sealVersion {
		return nil, errUnopened(nil)
	}
	aead, err := chacha20poly1305.NewX(key[:])
	if err != nil {
		return nil, errUnopened(err)
	}
	plain, err := aead.Open([]byte{}, sealed[1:sealHeader], sealed[sealHeader:], []byte(label))
	if err != nil {
		return nil, errUnopened(err)
	}
	return plain, nil
}

func errUnopened(cause error) error {
	return holdpoint.Errorf(holdpoint.CodeInternal,
		"Sealed content cannot be opened; it was sealed with another key, for another place, or is damaged.").Wrap(cause)
}
