package payload_test

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
	"github.com/holdpoint/holdpoint/internal/payload"
)

// FuzzFingerprint holds that spelling does not matter and content does: members in another order, every character
// escaped and numbers with an exponent give the same fingerprint; a document beside it gives another. No form is much
// longer than what was sent, whatever its exponents.
func FuzzFingerprint(f *testing.F) {
	for _, seed := range []string{`{"b":[1e5,-0.10],"a":"😀"}`, `[1e20,1e21,1e-7,1e999999999]`, `{"a":{"b":{}},"c":[null,true]}`, `"é\u0041"`, `-0`, `12345678901234567890.5`} {
		f.Add([]byte(seed), "/a")
	}
	f.Fuzz(func(t *testing.T, doc []byte, ignored string) {
		canonical, err := payload.Canonical(doc, payload.Limits{})
		if err != nil {
			return
		}
		require.LessOrEqual(t, len(canonical), 6*len(doc)+32)
		respelled := respell(t, doc)
		for _, ignore := range [][]string{nil, {ignored}} {
			one, err := payload.Fingerprint(doc, ignore, payload.Limits{})
			two, twice := payload.Fingerprint(respelled, ignore, payload.Limits{})
			if err != nil {
				require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeInvalidPolicy}, "only the pointer can be wrong now")
				continue
			}
			require.NoError(t, twice, "%s", respelled)
			require.Equal(t, one, two, "%s and %s", doc, respelled)
		}
		one, err := payload.Fingerprint(doc, nil, payload.Limits{})
		require.NoError(t, err)
		other, err := payload.Fingerprint([]byte("["+string(doc)+"]"), nil, payload.Limits{MaxDepth: 101, MaxBytes: 1 << 21})
		require.NoError(t, err)
		require.NotEqual(t, one, other)
	})
}

// respell writes the same document in another way.
func respell(t *testing.T, doc []byte) []byte {
	d := json.NewDecoder(bytes.NewReader(doc))
	d.UseNumber()
	var v any
	require.NoError(t, d.Decode(&v))
	var b strings.Builder
	spell(&b, v)
	return []byte(b.String())
}

func spell(b *strings.Builder, v any) {
	switch v := v.(type) {
	case map[string]any:
		names := make([]string, 0, len(v))
		for name := range v {
			names = append(names, name)
		}
		slices.Sort(names)
		slices.Reverse(names)
		b.WriteString("{ ")
		for i, name := range names {
			if i > 0 {
				b.WriteString(" ,\n")
			}
			b.WriteString(escapeAll(name))
			b.WriteString("\t: ")
			spell(b, v[name])
		}
		b.WriteString(" }")
	case []any:
		b.WriteString("[\r\n")
		for i := range v {
			if i > 0 {
				b.WriteString(",")
			}
			spell(b, v[i])
		}
		b.WriteString("]")
	case string:
		b.WriteString(escapeAll(v))
	case json.Number:
		b.WriteString(number(string(v)))
	default:
		text, _ := json.Marshal(v)
		b.Write(text)
	}
}

// number adds a zero to the fraction, or an exponent of nothing.
func number(n string) string {
	switch {
	case strings.ContainsAny(n, "eE"):
		return strings.ToUpper(n)
	case strings.Contains(n, "."):
		return n + "00E+0"
	}
	return n + ".000e-0"
}

// FuzzOperationKey holds that two operations share a key exactly if they are the same one, and that each key is one that
// a claim may carry.
func FuzzOperationKey(f *testing.F) {
	f.Add("shop", "9", "book", "", "shop", "9/book", "", "")
	f.Add("a/b", "c", "d", "", "a", "b/c", "d", "")
	f.Add("a%2Fb", "c", "d", "", "a/b", "c", "d", "")
	f.Add("sha256:x", "c", "d", "", "sha256:"+payload.Hash([]byte("sha256:x")), "c", "d", "")
	f.Add("ä", "c", "d", "1", "a\u0308", "c", "d", "1")
	f.Add(strings.Repeat("x", 101), "c", "d", "", strings.Repeat("x", 100), "c", "d", "")
	f.Add(strings.Repeat("x", 99), strings.Repeat("y", 99), strings.Repeat("z", 99), "1", strings.Repeat("x", 99), strings.Repeat("y", 99), strings.Repeat("z", 99), "")
	f.Fuzz(func(t *testing.T, s1, r1, a1, v1, s2, r2, a2, v2 string) {
		one, two := payload.Operation{Source: s1, Record: r1, Action: a1, Revision: v1}, payload.Operation{Source: s2, Record: r2, Action: a2, Revision: v2}
		k1, err1 := one.Key()
		k2, err2 := two.Key()
		for _, x := range []struct {
			key string
			err error
		}{{k1, err1}, {k2, err2}} {
			if x.err != nil {
				require.ErrorIs(t, x.err, &holdpoint.Error{Code: holdpoint.CodeInvalidKey})
				continue
			}
			require.NoError(t, payload.CheckKey(x.key))
		}
		if err1 == nil && err2 == nil {
			require.Equal(t, one == two, k1 == k2, "%q %q", k1, k2)
		}
	})
}

// FuzzSealed holds that a sealed text opens under its own label only, and not at all once a bit of it is turned; and
// that no made-up text opens.
func FuzzSealed(f *testing.F) {
	master, err := payload.NewMaster(bytes.Repeat([]byte("k"), 32))
	require.NoError(f, err)
	key, wrapped, err := master.NewKey("run:acme:1")
	require.NoError(f, err)
	f.Add([]byte("s3cret"), "payload", uint(0))
	f.Add([]byte{}, "", uint(99))
	f.Add(bytes.Repeat([]byte{1}, 200), "effect:1", uint(1<<20))
	f.Fuzz(func(t *testing.T, text []byte, label string, bit uint) {
		if text == nil {
			text = []byte{}
		}
		sealed := key.Seal(label, text)
		plain, err := key.Open(label, sealed)
		require.NoError(t, err)
		require.Equal(t, text, plain)
		_, err = key.Open(label+"x", sealed)
		require.Error(t, err)
		bit %= uint(len(sealed)) * 8
		sealed[bit/8] ^= 1 << (bit % 8)
		_, err = key.Open(label, sealed)
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeInternal})
		_, err = key.Open(label, text)
		require.Error(t, err, "made up")
		_, err = master.Unwrap("run:acme:1", text)
		require.Error(t, err)
		_, err = master.Unwrap("run:acme:2", wrapped)
		require.Error(t, err)
		turned := slices.Clone(wrapped)
		bit %= uint(len(turned)) * 8
		turned[bit/8] ^= 1 << (bit % 8)
		_, err = master.Unwrap("run:acme:1", turned)
		require.Error(t, err)
	})
}

// FuzzDerivedKey holds that an identity of the chain is always derived and that a reason goes with every refusal.
func FuzzDerivedKey(f *testing.F) {
	f.Add("order-1", "order-1-retry")
	f.Add("order-1", "order-10")
	f.Add("a", "COPY-OF-a")
	f.Add("é", "é#2")
	f.Fuzz(func(t *testing.T, old, proposed string) {
		chain := []payload.Identity{{Key: old}}
		why, derived := payload.DerivedKey(chain, payload.Identity{Key: proposed})
		require.Equal(t, derived, why != "")
		if old == proposed {
			require.True(t, derived)
		}
		if old != "" {
			_, derived = payload.DerivedKey(chain, payload.Identity{Key: old + "-" + proposed})
			require.True(t, derived, "whatever follows a separator is derived")
		}
	})
}
