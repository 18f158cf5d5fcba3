package auth

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Kind says what a token is for.
type Kind string

// The kinds of token. A challenge is one person's way in to one approval; a session is the value of the cookie.
const (
	KindMachine   Kind = "machine"   // hp_…
	KindPerson    Kind = "person"    // hpu_…
	KindSession   Kind = "session"   // hps_…
	KindChallenge Kind = "challenge" // no prefix, so that links stay short
)

var prefixes = map[Kind]string{KindMachine: "hp_", KindPerson: "hpu_", KindSession: "hps_", KindChallenge: ""}

const (
	tokenBytes = 32 // 256 bits
	tokenChars = 43 // tokenBytes in base64url without padding
	shownChars = 6  // of the random part, in Prefix
)

// Minted is a new token. Token is shown once, to its owner, and never again; Hash is what the store keeps. However a
// Minted is printed, logged or marshalled, the token stays out.
type Minted struct {
	Token  string
	Hash   string // HashToken(Token)
	Prefix string // the beginning by which people tell keys apart in a list; "" for sessions and challenges
}

// Mint makes a token with 256 bits from crypto/rand. It panics on an unknown kind.
func Mint(kind Kind) Minted {
	prefix, ok := prefixes[kind]
	if !ok {
		panic("auth: unknown kind of token")
	}
	secret := make([]byte, tokenBytes)
	rand.Read(secret)
	token := prefix + base64.RawURLEncoding.EncodeToString(secret)
	m := Minted{Token: token, Hash: HashToken(token)}
	if kind == KindMachine || kind == KindPerson {
		m.Prefix = token[:len(prefix)+shownChars]
	}
	return m
}

// HashToken returns the SHA-256 of token in lower-case hex: the only form in which a token is stored or looked up. A
// plain hash suffices because a token has 256 random bits.
func HashToken(token string) string {
	sum := sha256.Sum256([]byte(token))
	return hex.EncodeToString(sum[:])
}

// KindOf returns the kind whose form token has. It is a check of syntax: whether such a token was ever minted, only the
// store knows.
func KindOf(token string) (Kind, bool) {
	for kind, prefix := range prefixes {
		secret, ok := strings.CutPrefix(token, prefix)
		if !ok || len(secret) != tokenChars {
			continue
		}
		raw, err := base64.RawURLEncoding.DecodeString(secret)
		if err == nil && base64.RawURLEncoding.EncodeToString(raw) == secret { // decoding skips line breaks, and stray bits unless strict
			return kind, true
		}
	}
	return "", false
}

// String stands for the token without showing it.
func (m Minted) String() string { return "token " + m.Prefix + "…" }

// Format is String, whatever the verb.
func (m Minted) Format(s fmt.State, _ rune) { _, _ = io.WriteString(s, m.String()) }

// LogValue is String.
func (m Minted) LogValue() slog.Value { return slog.StringValue(m.String()) }

// MarshalText is String, also inside JSON: a handler that answers with the token names Token.
func (m Minted) MarshalText() ([]byte, error) { return []byte(m.String()), nil }
