package payload_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
)

func master(t require.TestingT, fill byte) *payload.Master {
	m, err := payload.NewMaster(bytes.Repeat([]byte{fill}, 32))
	require.NoError(t, err)
	return m
}

func TestKeysAreWrapped(t *testing.T) {
	m := master(t, 1)
	k, wrapped, err := m.NewKey("run:acme:1")
	require.NoError(t, err)
	sealed := k.Seal("payload", []byte("hello"))

	same, err := m.Unwrap("run:acme:1", wrapped)
	require.NoError(t, err)
	plain, err := same.Open("payload", sealed)
	require.NoError(t, err)
	require.Equal(t, "hello", string(plain))
	require.Equal(t, k.Index("a"), same.Index("a"))
	require.Equal(t, k.ProviderKey("t", "w", "k", "s", 0), same.ProviderKey("t", "w", "k", "s", 0))

	_, err = m.Unwrap("run:acme:2", wrapped)
	require.Equal(t, holdpoint.CodeInternal, code(t, err), "another label")
	_, err = master(t, 2).Unwrap("run:acme:1", wrapped)
	require.Error(t, err, "another master key")
	for i := range wrapped {
		bad := bytes.Clone(wrapped)
		bad[i] ^= 1
		_, err = m.Unwrap("run:acme:1", bad)
		require.Error(t, err, "bit flipped in byte %d", i)
	}
	for n := range len(wrapped) {
		_, err = m.Unwrap("run:acme:1", wrapped[:n])
		require.Error(t, err, "cut to %d bytes", n)
	}

	other, _, err := m.NewKey("run:acme:1")
	require.NoError(t, err)
	require.NotEqual(t, k.Index("a"), other.Index("a"), "each key is fresh")
	_, err = other.Open("payload", sealed)
	require.Error(t, err)

	for _, n := range []int{0, 16, 31, 33} {
		_, err := payload.NewMaster(make([]byte, n))
		require.Error(t, err)
	}
}

func TestSealOpen(t *testing.T) {
	k, _, err := master(t, 1).NewKey("run")
	require.NoError(t, err)
	require.Nil(t, k.Seal("l", nil))
	plain, err := k.Open("l", nil)
	require.NoError(t, err)
	require.Nil(t, plain)
	plain, err = k.Open("l", k.Seal("l", []byte{}))
	require.NoError(t, err)
	require.NotNil(t, plain)
	require.Empty(t, plain)
	_, err = k.Open("l", []byte{})
	require.Error(t, err, "empty is not nil: fail closed")
	require.NotEqual(t, k.Seal("l", []byte("x")), k.Seal("l", []byte("x")), "each nonce is random")

	rapid.Check(t, func(t *rapid.T) {
		label, text := rapid.String().Draw(t, "label"), rapid.SliceOfN(rapid.Byte(), 8, 64).Draw(t, "text")
		sealed := k.Seal(label, text)
		require.False(t, bytes.Contains(sealed, text))
		plain, err := k.Open(label, sealed)
		require.NoError(t, err)
		require.Equal(t, text, plain)
		_, err = k.Open(label+"x", sealed)
		require.Equal(t, holdpoint.CodeInternal, code(t, err))
		sealed[rapid.IntRange(0, len(sealed)-1).Draw(t, "byte")] ^= 0x40
		_, err = k.Open(label, sealed)
		require.Error(t, err)
	})
}

func TestZeroKeyFailsClosed(t *testing.T) {
	var k payload.Key
	require.Panics(t, func() { k.Seal("l", []byte("x")) })
	require.Panics(t, func() { k.Index("x") })
	require.Panics(t, func() { k.ProviderKey("t", "w", "k", "s", 0) })
	_, err := k.Open("l", []byte("x"))
	require.Error(t, err)
}

func TestKeysHideThemselves(t *testing.T) {
	m := master(t, 'M')
	k, _, err := m.NewKey("run")
	require.NoError(t, err)
	var log bytes.Buffer
	logger := slog.New(slog.NewJSONHandler(&log, nil))
	logger.Info("x", "key", k, "master", m)
	require.Equal(t, 2, strings.Count(log.String(), "[key]"))
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
		require.Equal(t, "[key] [key]", fmt.Sprintf(verb+" "+verb, k, m), verb)
	}
	require.Equal(t, "[key]", k.String())
	require.Equal(t, "[key]", m.String())
	b, err := json.Marshal(map[string]any{"k": k, "m": m})
	require.NoError(t, err)
	require.JSONEq(t, `{"k":{},"m":{}}`, string(b))
}

func TestIndexAndProviderKey(t *testing.T) {
	k, _, err := master(t, 1).NewKey("effect:acme")
	require.NoError(t, err)
	require.Len(t, k.Index(), 64)
	seen := map[string]bool{}
	for _, parts := range [][]string{nil, {""}, {"", ""}, {"a", "b"}, {"ab"}, {"a", "b", ""}, {"b", "a"}} {
		seen[k.Index(parts...)] = true
	}
	require.Len(t, seen, 7)

	full := k.ProviderKey("acme", "reply", "evt_1", "note", 0)
	require.Regexp(t, `^[a-z2-7]{52}$`, full)
	require.Equal(t, full, k.ProviderKey("acme", "reply", "evt_1", "note", 255))
	require.Equal(t, full[:45], k.ProviderKey("acme", "reply", "evt_1", "note", 45))
	require.NotEqual(t, full, k.ProviderKey("acme", "reply", "evt_1n", "ote", 0))
	require.NotEqual(t, full, k.ProviderKey("acme", "reply", "evt_1", "mail", 0))
}

func TestDigest(t *testing.T) {
	base := func() payload.DigestInput {
		return payload.DigestInput{Tenant: "acme", RunID: "r1", Revision: 1, PolicyHash: "p", Effects: []payload.DigestEffect{
			{Slot: "reply", Type: "email.reply", Connector: "mail", ConnectorVersion: "c1", Target: "jane@acme.example", PayloadHash: "h1"},
			{Slot: "note", Type: "crm.note", Connector: "crm", ConnectorVersion: "c2", Target: "81", PayloadHash: "h2", Order: 1, After: []string{"reply"}},
		}}
	}
	want := payload.Digest(base())
	require.Regexp(t, `^[0-9a-f]{64}$`, want)
	require.Equal(t, want, payload.Digest(base()))
	empty := base()
	empty.Effects[0].After = []string{}
	require.Equal(t, want, payload.Digest(empty))

	seen := map[string]int{want: -1}
	for i, change := range []func(*payload.DigestInput){
		func(d *payload.DigestInput) { d.Tenant = "other" },
		func(d *payload.DigestInput) { d.RunID = "r2" },
		func(d *payload.DigestInput) { d.Revision = 2 },
		func(d *payload.DigestInput) { d.PolicyHash = "q" },
		func(d *payload.DigestInput) { d.Effects = d.Effects[:1] },
		func(d *payload.DigestInput) { d.Effects = nil },
		func(d *payload.DigestInput) { d.Effects[0], d.Effects[1] = d.Effects[1], d.Effects[0] },
		func(d *payload.DigestInput) { d.Effects[0].Slot = "x" },
		func(d *payload.DigestInput) { d.Effects[0].Type = "x" },
		func(d *payload.DigestInput) { d.Effects[0].Connector = "x" },
		func(d *payload.DigestInput) { d.Effects[0].ConnectorVersion = "x" },
		func(d *payload.DigestInput) { d.Effects[0].Target = "x" },
		func(d *payload.DigestInput) { d.Effects[0].Target = "\xff" },
		func(d *payload.DigestInput) { d.Effects[0].Target = "\xfe" },
		func(d *payload.DigestInput) { d.Effects[0].Target = "\x00" },
		func(d *payload.DigestInput) { d.Effects[0].PayloadHash = "x" },
		func(d *payload.DigestInput) { d.Effects[0].Order = 2 },
		func(d *payload.DigestInput) { d.Effects[1].After = nil },
		func(d *payload.DigestInput) { d.Effects[1].After = []string{"reply", "x"} },
	} {
		d := base()
		change(&d)
		got := payload.Digest(d)
		require.NotContains(t, seen, got, "changes %d and %d look alike", i, seen[got])
		seen[got] = i
	}
}

// The digest can be recomputed from its JSON by anyone who knows the canonical form.
func TestDigestIsTheHashOfTheCanonicalForm(t *testing.T) {
	text := rapid.StringOf(rapid.SampledFrom([]rune("ab\"\\\n\u007f\u2028é😀<&")))
	rapid.Check(t, func(t *rapid.T) {
		d := payload.DigestInput{Tenant: text.Draw(t, "tenant"), RunID: text.Draw(t, "run"), Revision: rapid.Int().Draw(t, "revision"),
			PolicyHash: text.Draw(t, "policy"), Effects: []payload.DigestEffect{}}
		for range rapid.IntRange(0, 3).Draw(t, "effects") {
			d.Effects = append(d.Effects, payload.DigestEffect{Slot: text.Draw(t, "slot"), Type: text.Draw(t, "type"),
				Connector: text.Draw(t, "connector"), ConnectorVersion: text.Draw(t, "version"), Target: text.Draw(t, "target"),
				PayloadHash: text.Draw(t, "hash"), Order: rapid.IntRange(-9, 9).Draw(t, "order"),
				After: append([]string{}, rapid.SliceOfN(text, 0, 2).Draw(t, "after")...)})
		}
		b, err := json.Marshal(d)
		require.NoError(t, err)
		canonical, err := payload.Canonical(b, payload.Limits{})
		require.NoError(t, err)
		sum := sha256.Sum256(canonical)
		require.Equal(t, hex.EncodeToString(sum[:]), payload.Digest(d))
	})
}
