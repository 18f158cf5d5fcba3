package auth

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/holdpoint/holdpoint"
)

const password = "correct horse battery"

func TestHashAndVerify(t *testing.T) {
	p := NewPasswords()
	hash, err := p.Hash(t.Context(), password)
	require.NoError(t, err)
	require.Regexp(t, `^\$argon2id\$v=19\$m=19456,t=2,p=1\$[A-Za-z0-9+/]{22}\$[A-Za-z0-9+/]{43}$`, hash)
	require.NotContains(t, hash, password)

	again, err := p.Hash(t.Context(), password)
	require.NoError(t, err)
	require.NotEqual(t, hash, again, "every hash has its own salt")

	for attempt, want := range map[string]bool{password: true, "Correct horse battery": false, password + " ": false, "": false} {
		ok, err := p.Verify(t.Context(), hash, attempt)
		require.NoError(t, err)
		require.Equal(t, want, ok, attempt)
	}
}

func TestPasswordsAreComparedComposed(t *testing.T) {
	p := NewPasswords()
	hash, err := p.Hash(t.Context(), "sch\u00f6nes Wetter heute")
	require.NoError(t, err)
	ok, err := p.Verify(t.Context(), hash, "scho\u0308nes Wetter heute")
	require.NoError(t, err)
	require.True(t, ok)
}

func TestHashRefuses(t *testing.T) {
	p := NewPasswords()
	for name, bad := range map[string]string{
		"short": "elevenchars", "short in characters": strings.Repeat("ö", 11), "long": strings.Repeat("x", 1025), "not UTF-8": "twelve chars\xff",
	} {
		_, err := p.Hash(t.Context(), bad)
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeInvalidRequest}, name)
		require.NotContains(t, err.Error(), bad, name)
	}
	for name, good := range map[string]string{"12 characters": strings.Repeat("ö", 12), "1024 bytes": strings.Repeat("x", 1024)} {
		_, err := p.Hash(t.Context(), good)
		require.NoError(t, err, name)
	}
}

// An unknown account and a damaged hash cost exactly what a known account costs.
func TestVerifyCostsTheSameForAnUnknownAccount(t *testing.T) {
	p := NewPasswords()
	hash, err := p.Hash(t.Context(), password)
	require.NoError(t, err)

	type cost struct {
		passes, memory, keyLen uint32
		lanes                  uint8
		salt                   int
	}
	var costs []cost
	derive := p.derive
	p.derive = func(pw, salt []byte, passes, memory uint32, lanes uint8, keyLen uint32) []byte {
		costs = append(costs, cost{passes, memory, keyLen, lanes, len(salt)})
		return derive(pw, salt, passes, memory, lanes, keyLen)
	}
	ok, err := p.Verify(t.Context(), hash, password)
	require.NoError(t, err)
	require.True(t, ok)
	ok, err = p.Verify(t.Context(), "", password)
	require.NoError(t, err)
	require.False(t, ok)
	ok, err = p.Verify(t.Context(), "$argon2id$damaged", password)
	require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeInternal})
	require.False(t, ok)
	require.Equal(t, []cost{costs[0], costs[0], costs[0]}, costs)
}

func TestAnUnknownAccountNeverMatches(t *testing.T) {
	p := NewPasswords()
	p.derive = func(_, _ []byte, _, _ uint32, _ uint8, keyLen uint32) []byte { return make([]byte, keyLen) }
	ok, err := p.Verify(t.Context(), "", password)
	require.NoError(t, err)
	require.False(t, ok, "not even if the derived key were the dummy")
}

func TestParsePHCIsStrict(t *testing.T) {
	good := phc{memory: argonMemory, passes: 2, lanes: 1, salt: make([]byte, 16), key: make([]byte, 32)}.String()
	_, ok := parsePHC(good)
	require.True(t, ok)
	for name, bad := range map[string]string{
		"empty":      "",
		"argon2i":    strings.Replace(good, "argon2id", "argon2i", 1),
		"version":    strings.Replace(good, "v=19", "v=16", 1),
		"huge cost":  strings.Replace(good, "m=19456", "m=4194304", 1),
		"no passes":  strings.Replace(good, "t=2", "t=0", 1),
		"sign":       strings.Replace(good, "t=2", "t=+2", 1),
		"more parts": good + "$x",
		"trailing":   good + "=",
		"no key":     good[:strings.LastIndex(good, "$")+1],
		"bcrypt":     "$2b$12$abcdefghijklmnopqrstuv",
	} {
		_, ok := parsePHC(bad)
		require.False(t, ok, name)
	}
}

// gated is a Passwords whose computations wait until release is closed.
func gated() (p *Passwords, release chan struct{}, now, most *atomic.Int32) {
	p, release, now, most = NewPasswords(), make(chan struct{}), new(atomic.Int32), new(atomic.Int32)
	p.derive = func(_, _ []byte, _, _ uint32, _ uint8, keyLen uint32) []byte {
		n := now.Add(1)
		defer now.Add(-1)
		for {
			m := most.Load()
			if n <= m || most.CompareAndSwap(m, n) {
				break
			}
		}
		<-release
		return make([]byte, keyLen)
	}
	return p, release, now, most
}

func TestAtMostTwoComputationsAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, release, now, most := gated()
		const callers = maxComputing + maxWaiting
		errs := make(chan error, callers)
		for range callers {
			go func() {
				_, err := p.Verify(t.Context(), "", password)
				errs <- err
			}()
		}
		synctest.Wait()
		require.EqualValues(t, 2, now.Load())

		_, err := p.Hash(t.Context(), password)
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeRateLimited}, "the queue is bounded")

		close(release)
		for range callers {
			require.NoError(t, <-errs)
		}
		require.EqualValues(t, 2, most.Load())
	})
}

func TestWaitingEndsWithTheContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, release, _, _ := gated()
		done := make(chan error, maxComputing)
		for range maxComputing {
			go func() {
				_, err := p.Verify(t.Context(), "", password)
				done <- err
			}()
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := p.Verify(ctx, "", password)
		require.ErrorIs(t, err, &holdpoint.Error{Code: holdpoint.CodeUnavailable})
		require.ErrorIs(t, err, context.DeadlineExceeded)

		close(release)
		for range maxComputing {
			require.NoError(t, <-done)
		}
		_, err = p.Hash(t.Context(), password)
		require.NoError(t, err, "no place is lost")
	})
}

func TestRandomPassword(t *testing.T) {
	a, b := RandomPassword(), RandomPassword()
	require.NotEqual(t, a, b)
	require.Regexp(t, `^[a-z2-7]{26}$`, a)
	_, err := NewPasswords().Hash(t.Context(), a)
	require.NoError(t, err)
}
