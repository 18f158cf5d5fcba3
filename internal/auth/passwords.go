package auth

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"strings"
	"unicode/utf8"

	"golang.org/x/crypto/argon2"
	"golang.org/x/text/unicode/norm"

	"github.com/holdpoint/holdpoint"
)

// The cost of a password: 19 MiB, two passes, one lane (OWASP Password Storage Cheat Sheet, argon2id).
const (
	argonMemory  = 19 * 1024 // KiB
	argonPasses  = 2
	argonLanes   = 1
	argonSaltLen = 16
	argonKeyLen  = 32
)

// The bounds of a password and of the work that waits for it.
const (
	minPassword  = 12   // characters
	maxPassword  = 1024 // bytes
	maxComputing = 2    // computations at a time, so at most 38 MiB
	maxWaiting   = 32   // fail closed: further callers are told to come back
)

// Passwords hashes and verifies passwords, at most two at a time. It is safe for concurrent use.
type Passwords struct {
	admitted  chan struct{} // computing and waiting
	computing chan struct{}
	derive    func(password, salt []byte, passes, memory uint32, lanes uint8, keyLen uint32) []byte
}

// NewPasswords makes a Passwords. One per process keeps the bound on memory.
func NewPasswords() *Passwords {
	return &Passwords{
		admitted:  make(chan struct{}, maxComputing+maxWaiting),
		computing: make(chan struct{}, maxComputing),
		derive:    argon2.IDKey,
	}
}

// Hash returns the argon2id hash of password with a fresh salt as a PHC string. It refuses a password of fewer than 12
// characters or more than 1024 bytes (invalid_request), and a call while too many wait (rate_limited) or whose ctx ends
// while waiting (unavailable).
func (p *Passwords) Hash(ctx context.Context, password string) (string, error) {
	password = norm.NFC.String(password)
	switch {
	case !utf8.ValidString(password):
		return "", holdpoint.Errorf(holdpoint.CodeInvalidRequest, "Send the password as valid UTF-8.")
	case utf8.RuneCountInString(password) < minPassword:
		return "", holdpoint.Errorf(holdpoint.CodeInvalidRequest, "Choose a password of at least %d characters.", minPassword)
	case len(password) > maxPassword:
		return "", holdpoint.Errorf(holdpoint.CodeInvalidRequest, "Choose a password of at most %d bytes.", maxPassword)
	}
	h := phc{memory: argonMemory, passes: argonPasses, lanes: argonLanes, salt: make([]byte, argonSaltLen)}
	rand.Read(h.salt)
	var err error
	h.key, err = p.compute(ctx, password, h, argonKeyLen)
	if err != nil {
		return "", err
	}
	return h.String(), nil
}

// Verify reports whether password has the hash that encoded holds, comparing in constant time. An empty encoded stands
// for an unknown account: it costs the same and answers false, so that accounts cannot be told apart from outside. An
// unreadable one costs the same and is an error (internal). Waiting fails as in Hash.
func (p *Passwords) Verify(ctx context.Context, encoded, password string) (bool, error) {
	password = norm.NFC.String(password)
	if len(password) > maxPassword {
		return false, nil
	}
	h, known := parsePHC(encoded)
	if !known {
		h = phc{memory: argonMemory, passes: argonPasses, lanes: argonLanes, salt: make([]byte, argonSaltLen), key: make([]byte, argonKeyLen)}
	}
	key, err := p.compute(ctx, password, h, uint32(len(h.key)))
	if err != nil {
		return false, err
	}
	same := subtle.ConstantTimeCompare(key, h.key) == 1
	if !known && encoded != "" {
		return false, holdpoint.Errorf(holdpoint.CodeInternal, "The stored password hash is unreadable; set a new password for this account.")
	}
	return same && known, nil
}

// compute waits for one of the two places and derives the key.
func (p *Passwords) compute(ctx context.Context, password string, h phc, keyLen uint32) ([]byte, error) {
	select {
	case p.admitted <- struct{}{}:
		defer func() { <-p.admitted }()
	default:
		return nil, holdpoint.Errorf(holdpoint.CodeRateLimited, "Too many people are logging in; try again in a few seconds.").With("retry_after", 5)
	}
	select {
	case p.computing <- struct{}{}:
		defer func() { <-p.computing }()
	case <-ctx.Done():
		return nil, holdpoint.Errorf(holdpoint.CodeUnavailable, "The password was not checked in time; try again.").Wrap(ctx.Err())
	}
	return p.derive([]byte(password), h.salt, h.passes, h.memory, h.lanes, keyLen), nil
}

// RandomPassword returns a password of 26 characters with at least 128 bits from crypto/rand, for a first log-in.
func RandomPassword() string { return strings.ToLower(rand.Text()) }

// phc is a parsed PHC string, `$argon2id$v=19$m=19456,t=2,p=1$salt$key`
// (github.com/P-H-C/phc-string-format).
type phc struct {
	memory, passes uint32
	lanes          uint8
	salt, key      []byte
}

func (h phc) String() string {
	b64 := base64.RawStdEncoding
	return fmt.Sprintf("$argon2id$v=%d$m=%d,t=%d,p=%d$%s$%s", argon2.Version, h.memory, h.passes, h.lanes,
		b64.EncodeToString(h.salt), b64.EncodeToString(h.key))
}

// parsePHC reads what String writes. Fail closed: a cost or length outside what this package ever wrote, or may write
// after its constants have been raised fourfold, is unreadable, so that a damaged row cannot exhaust memory.
func parsePHC(encoded string) (phc, bool) {
	parts := strings.Split(encoded, "$")
	if len(parts) != 6 || parts[0] != "" || parts[1] != "argon2id" || parts[2] != fmt.Sprintf("v=%d", argon2.Version) {
		return phc{}, false
	}
	var h phc
	if _, err := fmt.Sscanf(parts[3], "m=%d,t=%d,p=%d", &h.memory, &h.passes, &h.lanes); err != nil {
		return phc{}, false
	}
	b64 := base64.RawStdEncoding.Strict()
	var err1, err2 error
	h.salt, err1 = b64.DecodeString(parts[4])
	h.key, err2 = b64.DecodeString(parts[5])
	ok := err1 == nil && err2 == nil && h.String() == encoded &&
		h.memory >= 8 && h.memory <= 4*argonMemory && h.passes >= 1 && h.passes <= 4*argonPasses && h.lanes >= 1 && h.lanes <= 4 &&
		len(h.salt) >= 8 && len(h.salt) <= 64 && len(h.key) >= 16 && len(h.key) <= 64
	return h, ok
}
