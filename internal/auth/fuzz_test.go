package auth

import (
	"encoding/base64"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
)

// FuzzToken holds that a text has the form of a token in one spelling only, and that a cookie gives a token only if it is
// a session's.
func FuzzToken(f *testing.F) {
	for _, kind := range []Kind{KindMachine, KindPerson, KindSession, KindChallenge} {
		f.Add(prefixes[kind] + strings.Repeat("A", tokenChars))
	}
	f.Add("hp_" + strings.Repeat("A", 42) + "B") // bits after the end
	f.Add("hps_" + strings.Repeat("=", tokenChars))
	f.Add("HP_" + strings.Repeat("A", tokenChars))
	f.Fuzz(func(t *testing.T, token string) {
		if kind, ok := KindOf(token); ok {
			secret, had := strings.CutPrefix(token, prefixes[kind])
			require.True(t, had)
			raw, err := base64.RawURLEncoding.DecodeString(secret)
			require.NoError(t, err)
			require.Equal(t, secret, base64.RawURLEncoding.EncodeToString(raw))
			require.Len(t, raw, tokenBytes)
		}
		require.Len(t, HashToken(token), 64)
		require.NotEqual(t, HashToken(token), HashToken(token+"x"))
		r := &http.Request{Header: http.Header{"Cookie": {SessionName(true, "/") + "=" + token}}}
		if got := SessionToken(r, true, "/"); got != "" {
			kind, ok := KindOf(got)
			require.True(t, ok && kind == KindSession)
		}
	})
}

// FuzzNonce holds that nobody makes a nonce up, and that one that was issued passes only unchanged and for its own form.
func FuzzNonce(f *testing.F) {
	now := time.Unix(1_800_000_000, 0)
	n := NewNonces([]byte(strings.Repeat("k", 32)))
	f.Add("", "s", "approve", "a/1", uint(0))
	f.Add(n.Issue("s", "approve", "a/1", now)+"A", "s", "approve", "a/1", uint(500))
	f.Add(strings.Repeat("A", 54), "", "", "", uint(7))
	one := n.Issue("s", "approve", "a/1", now)
	f.Add(one[:9]+"\n"+one[9:], "s", "approve", "a/1", uint(7))
	f.Fuzz(func(t *testing.T, made, session, purpose, subject string, at uint) {
		bad := &holdpoint.Error{Code: holdpoint.CodeBadNonce}
		issued := n.Issue(session, purpose, subject, now)
		require.NoError(t, n.Check(issued, session, purpose, subject, now))
		if made != issued {
			require.ErrorIs(t, n.Check(made, session, purpose, subject, now), bad)
		}
		require.ErrorIs(t, n.Check(issued, session+"x", purpose, subject, now), bad)
		require.ErrorIs(t, n.Check(issued, session, purpose+subject+"x", "", now), bad)
		raw, err := base64.RawURLEncoding.DecodeString(issued)
		require.NoError(t, err)
		at %= uint(len(raw)) * 8
		raw[at/8] ^= 1 << (at % 8)
		require.ErrorIs(t, n.Check(base64.RawURLEncoding.EncodeToString(raw), session, purpose, subject, now), bad)
	})
}

// FuzzStoredPassword holds that a stored password is read only in the one form that is written, within its bounds.
func FuzzStoredPassword(f *testing.F) {
	whole := phc{memory: argonMemory, passes: argonPasses, lanes: 1, salt: make([]byte, 16), key: make([]byte, 32)}.String()
	f.Add(whole)
	f.Add(strings.Replace(whole, "p=1", "p=01", 1))
	f.Add(strings.Replace(whole, "m=", "m=9", 1))
	f.Add("$argon2id$v=19$m=8,t=1,p=1$$")
	f.Fuzz(func(t *testing.T, encoded string) {
		h, ok := parsePHC(encoded)
		if !ok {
			return
		}
		require.Equal(t, encoded, h.String())
		require.LessOrEqual(t, h.memory, uint32(4*argonMemory))
		require.LessOrEqual(t, len(h.key), 64)
	})
}
