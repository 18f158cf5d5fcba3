package egress_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/holdpoint/holdpoint/internal/egress"
)

func TestCheckRefusesWhatIsNotPublic(t *testing.T) {
	tests := []struct{ addr, reason string }{
		{"127.0.0.1", "loopback"},
		{"127.255.255.254", "loopback"},
		{"::1", "loopback"},
		{"10.0.0.1", "private"},
		{"172.31.255.255", "private"},
		{"192.168.1.1", "private"},
		{"fd12::1", "private"},
		{"100.64.0.1", "carrier-grade NAT"},
		{"169.254.1.1", "link-local"},
		{"fe80::1%eth0", "link-local"},
		{"169.254.169.254", "metadata"},
		{"168.63.129.16", "metadata"},
		{"100.100.100.200", "metadata"},
		{"fd00:ec2::254", "metadata"},
		{"0.0.0.0", "unspecified"},
		{"0.1.2.3", "unspecified"},
		{"::", "unspecified"},
		{"224.0.0.1", "multicast"},
		{"ff02::1", "multicast"},
		{"255.255.255.255", "reserved"},
		{"::ffff:127.0.0.1", "loopback"},
		{"::ffff:10.1.2.3", "private"},
		{"::ffff:169.254.169.254", "metadata"},
		{"::7f00:1", "IPv4-compatible"},
		{"::ffff:0:7f00:1", "IPv4-translated"},
		{"64:ff9b::8.8.8.8", "NAT64"},
		{"64:ff9b:1::1", "NAT64"},
		{"2002:7f00:1::", "6to4"},
		{"2001::1", "Teredo"},
		{"2001:db8::1", "documentation"},
		{"203.0.113.9", "documentation"},
		{"fec0::1", "site-local"},
	}
	for _, tc := range tests {
		t.Run(tc.addr, func(t *testing.T) {
			for _, g := range []*egress.Guard{nil, {}} {
				var refused *egress.RefusedError
				require.ErrorAs(t, g.Check(netip.MustParseAddr(tc.addr)), &refused)
				require.Equal(t, tc.reason, refused.Reason)
			}
		})
	}
}

func TestCheckPermitsPublicAndAllowed(t *testing.T) {
	var none *egress.Guard
	for _, a := range []string{"8.8.8.8", "1.1.1.1", "172.32.0.1", "100.128.0.1", "2606:4700::1111", "::ffff:8.8.8.8"} {
		require.NoError(t, none.Check(netip.MustParseAddr(a)), a)
	}
	allow, err := egress.ParseAllow(" 10.1.0.0/16, 127.0.0.1 ,::1,64:ff9b::/96,")
	require.NoError(t, err)
	require.Len(t, allow, 4)
	g := &egress.Guard{Allow: allow}
	for _, a := range []string{"10.1.2.3", "::ffff:10.1.2.3", "127.0.0.1", "::1", "64:ff9b::8.8.8.8"} {
		require.NoError(t, g.Check(netip.MustParseAddr(a)), a)
	}
	for _, a := range []string{"10.2.0.1", "127.0.0.2", "64:ff9b::169.254.169.254", "64:ff9b::192.168.0.1"} {
		require.Error(t, g.Check(netip.MustParseAddr(a)), a)
	}
	require.Error(t, g.Check(netip.Addr{}))
}

func TestParseAllowRefusesMistakes(t *testing.T) {
	for _, s := range []string{"10.0.0.1/8", "ten", "10.0.0.0/33", "::ffff:10.0.0.0/104", "fe80::1%eth0", "example.com"} {
		_, err := egress.ParseAllow(s)
		require.Error(t, err, s)
	}
	none, err := egress.ParseAllow("")
	require.NoError(t, err)
	require.Empty(t, none)
}

func TestCheckAgreesWithTheStandardLibrary(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var addr netip.Addr
		if rapid.Bool().Draw(t, "v4") {
			addr = netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "bytes")))
		} else {
			addr = netip.AddrFrom16([16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes")))
		}
		plain := addr.Unmap()
		notPublic := plain.IsPrivate() || plain.IsLoopback() || plain.IsMulticast() || plain.IsUnspecified() ||
			plain.IsLinkLocalUnicast() || !plain.IsGlobalUnicast()
		if notPublic && (&egress.Guard{}).Check(addr) == nil {
			t.Fatalf("%s is not public and was permitted", addr)
		}
	})
}

func TestDialChecksTheResolvedAddress(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { require.NoError(t, l.Close()) }()
	_, port, err := net.SplitHostPort(l.Addr().String())
	require.NoError(t, err)

	// A name that resolves to loopback is refused as well as the address itself.
	for _, host := range []string{"127.0.0.1", "localhost", "::ffff:127.0.0.1"} {
		_, err = (&egress.Guard{}).DialContext(context.Background(), "tcp", net.JoinHostPort(host, port))
		var refused *egress.RefusedError
		require.ErrorAs(t, err, &refused, host)
		require.Equal(t, "loopback", refused.Reason)
	}

	allow, err := egress.ParseAllow("127.0.0.0/8")
	require.NoError(t, err)
	c, err := (&egress.Guard{Allow: allow}).DialContext(context.Background(), "tcp", l.Addr().String())
	require.NoError(t, err)
	require.NoError(t, c.Close())

	_, err = (&egress.Guard{Allow: allow}).DialContext(context.Background(), "udp", l.Addr().String())
	var refused *egress.RefusedError
	require.True(t, errors.As(err, &refused))
}
