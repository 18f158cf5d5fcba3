package auth

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint"
)

var (
	nonceKey = bytes.Repeat([]byte{7}, 32)
	noon     = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	badForm  = &holdpoint.Error{Code: holdpoint.CodeBadNonce}
)

func TestNonceIsBound(t *testing.T) {
	n := NewNonces(nonceKey)
	nonce := n.Issue("session-1", "decide", "approval-1 digest-1", noon)
	require.NoError(t, n.Check(nonce, "session-1", "decide", "approval-1 digest-1", noon))
	require.NoError(t, NewNonces(nonceKey).Check(nonce, "session-1", "decide", "approval-1 digest-1", noon), "another replica")

	tests := map[string][4]string{
		"empty":           {"", "session-1", "decide", "approval-1 digest-1"},
		"not base64":      {nonce + "=", "session-1", "decide", "approval-1 digest-1"},
		"cut":             {nonce[:len(nonce)-2], "session-1", "decide", "approval-1 digest-1"},
		"other session":   {nonce, "session-2", "decide", "approval-1 digest-1"},
		"no session":      {nonce, "", "decide", "approval-1 digest-1"},
		"other purpose":   {nonce, "session-1", "open", "approval-1 digest-1"},
		"other digest":    {nonce, "session-1", "decide", "approval-1 digest-2"},
		"moved boundary":  {nonce, "session-1d", "ecide", "approval-1 digest-1"},
		"joined subjects": {nonce, "session-1", "decideapproval-1", " digest-1"},
	}
	var sentence string
	for name, tt := range tests {
		err := n.Check(tt[0], tt[1], tt[2], tt[3], noon)
		require.ErrorIs(t, err, badForm, name)
		if sentence == "" {
			sentence = err.Error()
		}
		require.Equal(t, sentence, err.Error(), "%s: all refusals look alike", name)
	}
	other := NewNonces(bytes.Repeat([]byte{8}, 32))
	require.ErrorIs(t, other.Check(nonce, "session-1", "decide", "approval-1 digest-1", noon), badForm)
}

func TestNonceExpires(t *testing.T) {
	n := NewNonces(nonceKey)
	nonce := n.Issue("s", "p", "x", noon)
	for after, ok := range map[time.Duration]bool{
		0: true, 12 * time.Hour: true, 12*time.Hour + time.Second: false, 1000 * time.Hour: false,
		-5 * time.Minute: true, -5*time.Minute - time.Second: false,
	} {
		require.Equal(t, ok, n.Check(nonce, "s", "p", "x", noon.Add(after)) == nil, after)
	}
}

func TestNonceDoesNotSurviveAChangedBit(t *testing.T) {
	n := NewNonces(nonceKey)
	nonce := n.Issue("s", "p", "x", noon)
	raw, err := base64.RawURLEncoding.DecodeString(nonce)
	require.NoError(t, err)
	for i := range raw {
		for bit := range 8 {
			changed := bytes.Clone(raw)
			changed[i] ^= 1 << bit
			require.ErrorIs(t, n.Check(base64.RawURLEncoding.EncodeToString(changed), "s", "p", "x", noon), badForm)
		}
	}
}

func TestNonceBindsEveryPart(t *testing.T) {
	n := NewNonces(nonceKey)
	text := rapid.StringMatching(`[ab ]{0,4}`)
	parts := rapid.Custom(func(t *rapid.T) [3]string {
		return [3]string{text.Draw(t, "session"), text.Draw(t, "purpose"), text.Draw(t, "subject")}
	})
	rapid.Check(t, func(t *rapid.T) {
		a, b := parts.Draw(t, "issued"), parts.Draw(t, "checked")
		err := n.Check(n.Issue(a[0], a[1], a[2], noon), b[0], b[1], b[2], noon)
		if (err == nil) != (a == b) {
			t.Fatalf("issued for %q, checked for %q: %v", a, b, err)
		}
	})
}

func TestNoncesNeedAKey(t *testing.T) {
	require.Panics(t, func() { NewNonces(make([]byte, 31)) })
}

func ExampleNonces() {
	n := NewNonces(make([]byte, 32))
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	nonce := n.Issue("session-1", "decide", "approval-1 digest-1", now)
	fmt.Println(n.Check(nonce, "session-1", "decide", "approval-1 digest-1", now.Add(time.Hour)))
	fmt.Println(n.Check(nonce, "session-2", "decide", "approval-1 digest-1", now.Add(time.Hour)) == nil)
	// Output:
	// <nil>
	// false
}
