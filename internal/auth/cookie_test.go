package auth

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestSessionCookie(t *testing.T) {
	token := Mint(KindSession).Token
	tests := map[string]struct {
		secure bool
		path   string
		want   string
	}{
		"https":            {true, "/", "__Host-holdpoint=" + token + "; Path=/; Max-Age=3600; HttpOnly; Secure; SameSite=Strict"},
		"https, no path":   {true, "", "__Host-holdpoint=" + token + "; Path=/; Max-Age=3600; HttpOnly; Secure; SameSite=Strict"},
		"https below path": {true, "/hold", "holdpoint=" + token + "; Path=/hold; Max-Age=3600; HttpOnly; Secure; SameSite=Strict"},
		"loopback":         {false, "/", "holdpoint=" + token + "; Path=/; Max-Age=3600; HttpOnly; SameSite=Strict"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c := SessionCookie(token, tt.secure, tt.path, time.Hour)
			require.Equal(t, tt.want, c.String())
			require.NoError(t, c.Valid())

			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.AddCookie(c)
			require.Equal(t, token, SessionToken(r, tt.secure, tt.path))
		})
	}
}

func TestSessionCookieIsDeleted(t *testing.T) {
	for _, c := range []*http.Cookie{SessionCookie("", true, "/", time.Hour), SessionCookie("x", true, "/", 0), SessionCookie("x", true, "/", -time.Hour)} {
		require.Equal(t, "__Host-holdpoint=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Strict", c.String())
	}
}

func TestSessionTokenTakesOnlySessions(t *testing.T) {
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	require.Empty(t, SessionToken(r, true, "/"))
	r.AddCookie(&http.Cookie{Name: "__Host-holdpoint", Value: Mint(KindPerson).Token})
	r.AddCookie(&http.Cookie{Name: "holdpoint", Value: Mint(KindSession).Token})
	require.Empty(t, SessionToken(r, true, "/"), "neither another kind of token nor the name that anybody may set")
}

func ExampleSessionCookie() {
	c := SessionCookie("", true, "/", 0)
	fmt.Println(c)
	// Output: __Host-holdpoint=; Path=/; Max-Age=0; HttpOnly; Secure; SameSite=Strict
}
