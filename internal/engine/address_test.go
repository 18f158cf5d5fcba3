package engine

import (
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// FuzzPlainAddress holds that an address is one word around an @ and reads the same the second time.
func FuzzPlainAddress(f *testing.F) {
	for _, s := range []string{"Ana@Acme.example", "<ana@acme.example>", "Ana <ana@acme.example>", `"a b"@acme.example`, "ana@acme.example (work)", " ana@acme.example",
		"ana@acme.example\r\nBcc: x@y", "ana@[127.0.0.1]", "ana@acme", "İ@acme.example", "@", "a@b@c", strings.Repeat("a", 300) + "@b.c"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, email string) {
		plain, err := plainAddress(email)
		if err != nil {
			return
		}
		require.Contains(t, plain, "@")
		around := func(r rune) bool {
			return unicode.IsSpace(r) || unicode.IsControl(r) || strings.ContainsRune(`<>()",;`, r)
		}
		require.False(t, strings.ContainsFunc(plain, around), "%q", plain)
		again, err := plainAddress(plain)
		require.NoError(t, err)
		require.Equal(t, plain, again)
	})
}
