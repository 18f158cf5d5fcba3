package auth

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
)

var kinds = []Kind{KindMachine, KindPerson, KindSession, KindChallenge}

func TestMintedTokensHaveTheirShape(t *testing.T) {
	shapes := map[Kind]string{
		KindMachine:   `^hp_[A-Za-z0-9_-]{43}$`,
		KindPerson:    `^hpu_[A-Za-z0-9_-]{43}$`,
		KindSession:   `^hps_[A-Za-z0-9_-]{43}$`,
		KindChallenge: `^[A-Za-z0-9_-]{43}$`,
	}
	seen := map[string]bool{}
	for kind, shape := range shapes {
		for range 100 {
			m := Mint(kind)
			require.Regexp(t, shape, m.Token)
			require.False(t, seen[m.Token])
			seen[m.Token] = true

			sum := sha256.Sum256([]byte(m.Token))
			require.Equal(t, hex.EncodeToString(sum[:]), m.Hash)
			require.True(t, strings.HasPrefix(m.Token, m.Prefix))
			require.LessOrEqual(t, len(m.Prefix), len("hpu_")+6)

			got, ok := KindOf(m.Token)
			require.True(t, ok)
			require.Equal(t, kind, got)
		}
	}
	require.Empty(t, Mint(KindChallenge).Prefix)
	require.Empty(t, Mint(KindSession).Prefix)
	require.Panics(t, func() { Mint("other") })
}

func TestKindOfRefuses(t *testing.T) {
	good := Mint(KindPerson).Token
	for _, bad := range []string{"", "hp_", "hpu_", good[:len(good)-1], good + "A", " " + good, good + "\n", strings.Replace(good, "hpu_", "HPU_", 1), "hpu_" + strings.Repeat("!", 43), strings.Repeat("A", 42) + "B"} {
		_, ok := KindOf(bad)
		require.False(t, ok, "%q", bad)
	}
	kind, ok := KindOf("hp_" + strings.Repeat("A", 40))
	require.True(t, ok)
	require.Equal(t, KindChallenge, kind, "a challenge may begin like a key: the length tells")
}

func TestKindOfNeverPanics(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom([]string{"", "hp_", "hpu_", "hps_"}).Draw(t, "prefix") + rapid.String().Draw(t, "rest")
		kind, ok := KindOf(s)
		if ok != (kind != "") {
			t.Fatalf("%q is %q, %v", s, kind, ok)
		}
	})
}

func TestMintedNeverShowsItsToken(t *testing.T) {
	for _, kind := range kinds {
		m := Mint(kind)
		var log bytes.Buffer
		logger := slog.New(slog.NewJSONHandler(&log, nil))
		logger.Info("minted", "token", m, "nested", struct{ M Minted }{m}, "pointer", &m)
		slog.New(slog.NewTextHandler(&log, nil)).Info("minted", "token", m, "nested", struct{ M Minted }{m})
		js, err := json.Marshal(map[string]any{"m": m, "p": &m})
		require.NoError(t, err)
		shown := log.String() + string(js) + fmt.Sprint(m, &m) + fmt.Sprintf("%v %+v %#v %s %q %x %d", m, m, m, m, m, m, m)
		require.NotContains(t, shown, m.Token)
		require.NotContains(t, shown, hex.EncodeToString([]byte(m.Token)))
	}
}

func ExampleKindOf() {
	fmt.Println(KindOf(Mint(KindMachine).Token))
	fmt.Println(KindOf("hp_short"))
	// Output:
	// machine true
	//  false
}

func ExampleMint() {
	key := Mint(KindPerson)
	fmt.Println(len(key.Token), len(key.Hash), key.Hash == HashToken(key.Token), strings.HasPrefix(key.Prefix, "hpu_"))
	// Output: 47 64 true true
}
