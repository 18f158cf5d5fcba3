package auth

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"time"

	"github.com/holdpoint/holdpoint"
)

const (
	nonceLife = 12 * time.Hour
	nonceSkew = 5 * time.Minute // between the clocks of two replicas
)

// Nonces issues and checks the hidden nonce of every form. A nonce is a MAC, not a row: it says that this server showed
// this form to this session at some time in the last twelve hours. Showing a page therefore writes nothing, and any
// replica with the same key checks it. It is no proof of single use; the transition behind the form is.
type Nonces struct{ key []byte }

// NewNonces makes a Nonces from secret key material of at least 32 bytes; it derives a key of its own from it. It
// panics on less.
func NewNonces(key []byte) *Nonces {
	if len(key) < 32 {
		panic("auth: the key for nonces needs at least 32 bytes")
	}
	mac := hmac.New(sha256.New, key)
	mac.Write([]byte("holdpoint nonce v1"))
	return &Nonces{key: mac.Sum(nil)}
}

// Issue returns a nonce bound to session, purpose (which form) and subject (about what, for example an approval's id
// and digest).
func (n *Nonces) Issue(session, purpose, subject string, now time.Time) string {
	issued := binary.BigEndian.AppendUint64(nil, uint64(now.Unix()))
	return base64.RawURLEncoding.EncodeToString(append(issued, n.mac(issued, session, purpose, subject)...))
}

// Check returns nil for a nonce that Issue made for the same session, purpose and subject at most twelve hours before
// now, else bad_nonce, with one sentence whatever was wrong.
func (n *Nonces) Check(nonce, session, purpose, subject string, now time.Time) error {
	raw, err := base64.RawURLEncoding.DecodeString(nonce)
	if err != nil || len(raw) != 8+sha256.Size || base64.RawURLEncoding.EncodeToString(raw) != nonce {
		return badNonce()
	}
	issued, mac := raw[:8], raw[8:]
	if !hmac.Equal(mac, n.mac(issued, session, purpose, subject)) {
		return badNonce()
	}
	age := now.Sub(time.Unix(int64(binary.BigEndian.Uint64(issued)), 0))
	if age > nonceLife || age < -nonceSkew {
		return badNonce()
	}
	return nil
}

func badNonce() error {
	return holdpoint.Errorf(holdpoint.CodeBadNonce, "This form is out of date or belongs to another session; load the page again and repeat what you did.")
}

// mac writes every part with its length, so that no two lists of parts share an input.
func (n *Nonces) mac(issued []byte, parts ...string) []byte {
	mac := hmac.New(sha256.New, n.key)
	mac.Write(issued)
	for _, p := range parts {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(p))))
		mac.Write([]byte(p))
	}
	return mac.Sum(nil)
}
