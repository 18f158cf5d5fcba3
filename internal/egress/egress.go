// Package egress decides which network addresses Holdpoint may connect to.
//
// A name is not enough: a public name can resolve to a private address, and it can resolve differently a second later.
// The guard therefore looks at the address that a socket is about to connect to, after resolution, for every address of
// every dial. Everything that is not plain public unicast is refused unless the operator has allowed the range.
package egress

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"
)

// RefusedError says that a connection was not opened because its resolved address is not allowed. No byte has left the
// machine. Find it with errors.As; the net package wraps it in an *net.OpError.
type RefusedError struct {
	Addr   netip.Addr // the resolved address; the zero Addr if there was none to check
	Reason string     // the kind of address, for example "private" or "metadata"
}

// Error implements error.
func (e *RefusedError) Error() string {
	if !e.Addr.IsValid() {
		return "egress refused: " + e.Reason
	}
	return fmt.Sprintf("egress refused: %s is a %s address; allow its range or use a public address", e.Addr, e.Reason)
}

// Guard permits public addresses and the ranges in Allow, and refuses all others. The zero Guard and a nil *Guard
// permit public addresses only. A Guard is safe for concurrent use as long as Allow does not change.
type Guard struct {
	Allow []netip.Prefix
}

// dialTimeout bounds one dial, whatever the caller's context says.
const dialTimeout = 30 * time.Second

// special are the ranges that are not plain public unicast, from the IANA special-purpose address registries. The first
// match names the reason, so narrower ranges stand before the wider ones that contain them.
var special = []struct {
	prefix netip.Prefix
	reason string
}{
	{netip.MustParsePrefix("169.254.169.254/32"), "metadata"}, // AWS, GCP, Azure, DigitalOcean and others
	{netip.MustParsePrefix("169.254.170.2/32"), "metadata"},   // AWS container credentials
	{netip.MustParsePrefix("100.100.100.200/32"), "metadata"}, // Alibaba Cloud
	{netip.MustParsePrefix("168.63.129.16/32"), "metadata"},   // Azure platform; lies in public space
	{netip.MustParsePrefix("192.0.0.192/32"), "metadata"},     // Oracle Cloud
	{netip.MustParsePrefix("fd00:ec2::254/128"), "metadata"},  // AWS over IPv6
	{netip.MustParsePrefix("fd20:ce::254/128"), "metadata"},   // GCP over IPv6

	{netip.MustParsePrefix("0.0.0.0/8"), "unspecified"},
	{netip.MustParsePrefix("10.0.0.0/8"), "private"},
	{netip.MustParsePrefix("100.64.0.0/10"), "carrier-grade NAT"},
	{netip.MustParsePrefix("127.0.0.0/8"), "loopback"},
	{netip.MustParsePrefix("169.254.0.0/16"), "link-local"},
	{netip.MustParsePrefix("172.16.0.0/12"), "private"},
	{netip.MustParsePrefix("192.0.0.0/24"), "reserved"},
	{netip.MustParsePrefix("192.0.2.0/24"), "documentation"},
	{netip.MustParsePrefix("192.88.99.0/24"), "reserved"},
	{netip.MustParsePrefix("192.168.0.0/16"), "private"},
	{netip.MustParsePrefix("198.18.0.0/15"), "benchmarking"},
	{netip.MustParsePrefix("198.51.100.0/24"), "documentation"},
	{netip.MustParsePrefix("203.0.113.0/24"), "documentation"},
	{netip.MustParsePrefix("224.0.0.0/4"), "multicast"},
	{netip.MustParsePrefix("240.0.0.0/4"), "reserved"},

	{netip.MustParsePrefix("::/128"), "unspecified"},
	{netip.MustParsePrefix("::1/128"), "loopback"},
	{netip.MustParsePrefix("::/96"), "IPv4-compatible"},
	{netip.MustParsePrefix("::ffff:0:0:0/96"), "IPv4-translated"},
	{netip.MustParsePrefix("64:ff9b::/96"), "NAT64"},
	{netip.MustParsePrefix("64:ff9b:1::/48"), "NAT64"},
	{netip.MustParsePrefix("100::/64"), "discard"},
	{netip.MustParsePrefix("2001::/32"), "Teredo"},
	{netip.MustParsePrefix("2001::/23"), "reserved"},
	{netip.MustParsePrefix("2001:db8::/32"), "documentation"},
	{netip.MustParsePrefix("2002::/16"), "6to4"},
	{netip.MustParsePrefix("3fff::/20"), "documentation"},
	{netip.MustParsePrefix("5f00::/16"), "reserved"},
	{netip.MustParsePrefix("fc00::/7"), "private"},
	{netip.MustParsePrefix("fe80::/10"), "link-local"},
	{netip.MustParsePrefix("fec0::/10"), "site-local"},
	{netip.MustParsePrefix("ff00::/8"), "multicast"},
}

// nat64 is the well-known prefix whose last four bytes are an IPv4 address (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// ParseAllow reads a comma-separated list of ranges and single addresses, such as "10.1.0.0/16, 127.0.0.1". An empty
// list allows nothing. A range with bits set behind its length is refused, because it is probably a mistake.
func ParseAllow(csv string) ([]netip.Prefix, error) {
	var out []netip.Prefix
	for field := range strings.SplitSeq(csv, ",") {
		field = strings.TrimSpace(field)
		if field == "" {
			continue
		}
		p, err := parseRange(field)
		if err != nil {
			return nil, err
		}
		out = append(out, p)
	}
	return out, nil
}

func parseRange(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil {
		if a.Zone() != "" {
			return netip.Prefix{}, fmt.Errorf("egress range %q: write the address without a zone", s)
		}
		a = a.Unmap()
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("egress range %q: write an address or a range such as 10.0.0.0/8", s)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("egress range %q: write the range as IPv4", s)
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("egress range %q: write %s if the whole range is meant", s, p.Masked())
	}
	return p, nil
}

// Check gives nil if a connection to addr is permitted, and a *RefusedError otherwise. An IPv4-mapped address is judged
// as the IPv4 address that it stands for. An allowed NAT64 prefix does not open the private IPv4 addresses behind it.
func (g *Guard) Check(addr netip.Addr) error {
	if !addr.IsValid() {
		return &RefusedError{Reason: "no address"}
	}
	addr = addr.Unmap().WithZone("")
	if g.allows(addr) {
		if nat64.Contains(addr) {
			b := addr.As16()
			return g.Check(netip.AddrFrom4([4]byte(b[12:])))
		}
		return nil
	}
	for _, s := range special {
		if s.prefix.Contains(addr) {
			return &RefusedError{Addr: addr, Reason: s.reason}
		}
	}
	if !addr.IsGlobalUnicast() {
		return &RefusedError{Addr: addr, Reason: "not a global unicast"}
	}
	return nil
}

func (g *Guard) allows(addr netip.Addr) bool {
	if g == nil {
		return false
	}
	for _, p := range g.Allow {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// Control has the type of net.Dialer.Control. The net package calls it with the resolved address of each socket that it
// is about to connect, so it cannot be misled by a name that resolves differently later.
func (g *Guard) Control(network, address string, _ syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return &RefusedError{Reason: "only TCP is permitted"}
	}
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		return &RefusedError{Reason: "the resolved address cannot be read"}
	}
	return g.Check(ap.Addr())
}

// DialContext connects to addr ("host:port") over TCP if the address that it resolves to is permitted. It fits
// http.Transport.DialContext. One dial takes 30 seconds at most, less if ctx ends before.
func (g *Guard) DialContext(ctx context.Context, network, addr string) (net.Conn, error) {
	if !strings.HasPrefix(network, "tcp") {
		return nil, &RefusedError{Reason: "only TCP is permitted"}
	}
	d := net.Dialer{Timeout: dialTimeout, Control: g.Control}
	return d.DialContext(ctx, network, addr)
}
