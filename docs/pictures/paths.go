package main

import "fmt"

// frame draws what all forwardings have: a client, the owner of the address, another node with a Pod.
func frame(title, about string) *picture {
	p := &picture{width: 900, height: 400, title: title, about: about}
	p.box(20, 130, 140, 60, "box", "client", "198.51.100.7")
	p.box(290, 60, 240, 200, "owner", "node 1, owner", "answers ARP for 192.0.2.128")
	p.box(620, 60, 260, 200, "box", "node 2")
	p.box(700, 195, 160, 50, "part", "Pod", "10.244.2.5")
	return p
}

// notes writes the numbered steps below the nodes.
func notes(p *picture, lines ...string) {
	for i, line := range lines {
		class := "name"
		if i == len(lines)-1 {
			class = "soft"
		}
		p.text(20, 292+i*24, class, line)
	}
}

// broken is the sentence about connections that lose their owner.
func broken(t table, column string) (string, error) {
	cell, err := t.cell("owner off", column)
	if err != nil {
		return "", err
	}
	return "Owner off: " + cell + " connections to Pods on other nodes broke (docs/development/connections.md).", nil
}

func pathPod(t table) (string, error) {
	measured, err := broken(t, "pod")
	if err != nil {
		return "", err
	}
	p := frame("Forwarding pod (default)", "A packet enters the owner, which sends it to the Pod with its own address as the source. The answer returns through the owner.")
	p.box(310, 115, 200, 62, "part", "virtual server", "picks a Pod, masquerades")
	p.path("way", "160,146 310,146")
	p.step(225, 146, "way", "1")
	p.path("way", "510,146 655,146 655,212 700,212")
	p.step(575, 146, "way", "2")
	p.path("back", "700,230 400,230 400,177")
	p.step(575, 230, "back", "3")
	p.path("back", "310,165 160,165")
	p.step(260, 165, "back", "4")
	notes(p, "1  to 192.0.2.128:80, from the client", "2  to the Pod, from node 1 (policy Local: a Pod of node 1, from the client)",
		"3, 4  the answer returns through the owner, which has the state of the connection", measured)
	return p.String(), nil
}

func pathNodePort(table) (string, error) {
	p := frame("Forwarding nodeport", "A packet enters the owner, which sends it to the NodePort of a healthy node. The service proxy there sends it to a Pod. The answer returns through both.")
	p.box(310, 115, 200, 62, "part", "virtual server", "picks a node, masquerades")
	p.box(640, 115, 220, 62, "part", "node port 31562", "another service proxy")
	p.path("way", "160,140 310,140")
	p.step(225, 140, "way", "1")
	p.path("way", "510,140 640,140")
	p.step(575, 140, "way", "2")
	p.path("way", "760,177 760,195")
	p.path("back", "820,195 820,177")
	p.path("back", "640,163 510,163")
	p.step(600, 163, "back", "3")
	p.path("back", "310,163 160,163")
	p.step(260, 163, "back", "4")
	notes(p, "1  to 192.0.2.128:80, from the client", "2  to the node port of node 2, from node 1; the proxy of node 2 picks the Pod",
		"3, 4  the answer returns through both nodes", "The owner has the state of its connections, as with pod: they break when the address moves.")
	return p.String(), nil
}

func pathDirect(t table) (string, error) {
	measured, err := broken(t, "direct")
	if err != nil {
		return "", err
	}
	p := frame("Forwarding direct", "The owner chooses a node by a hash of the client's address and port and sends the packet there through a tunnel. That node sends it to its Pod, and the answer goes from there to the client.")
	p.box(310, 115, 200, 62, "part", "hash of the client", "the same on every node")
	p.box(680, 95, 180, 62, "part", "virtual server", "picks a local Pod")
	p.path("way", "160,146 310,146")
	p.step(225, 146, "way", "1")
	p.path("way", "510,126 680,126")
	p.step(575, 126, "way", "2")
	p.path("way", "790,157 790,195")
	p.path("back", "700,222 580,222 580,274 90,274 90,190")
	p.step(350, 274, "back", "3")
	p.text(536, 108, "soft", "vxlan, 7949")
	for i, line := range []string{"1  to 192.0.2.128:80, from the client", "2  the unchanged packet in a tunnel; node 1 keeps no state", "3  the answer leaves node 2, from 192.0.2.128:80: the Pod sees the client's address", measured} {
		class := "name"
		if i == 3 {
			class = "soft"
		}
		p.text(20, 308+i*24, class, line)
	}
	return p.String(), nil
}

func topology() string {
	p := &picture{width: 900, height: 480, title: "IronLB in a cluster", about: "ironlb-ccm allocates addresses. A speaker on each node programs the kernel, answers ARP for the addresses that it owns, and publishes BGP routes through ironlb-bgpd."}
	p.box(20, 60, 340, 62, "box", "ironlb-ccm (Deployment)", "pool → EXTERNAL-IP, address → list of nodes")
	p.box(520, 60, 360, 62, "box", "Kubernetes API", "Services, EndpointSlices, VirtualIP, SpeakerStatus")
	p.path("line", "360,91 520,91")
	for i := range 3 {
		x, class, owns := 20+i*320, "box", "programs 192.0.2.128"
		if i == 0 {
			class, owns = "owner", "owns 192.0.2.128: ARP, NDP"
		}
		p.box(x, 180, 220, 180, class, fmt.Sprintf("node %d", i+1))
		p.box(x+10, 212, 200, 28, "part", "ironlb-speaker")
		p.box(x+10, 246, 200, 28, "part", "ironlb-bgpd: BGP, BFD")
		p.box(x+10, 280, 200, 28, "part", "kernel: nftables or IPVS")
		p.text(x+12, 330, "soft", owns)
		p.text(x+12, 348, "soft", "Pods")
	}
	p.path("line", "690,122 690,180")
	p.text(702, 150, "soft", "each speaker watches")
	for _, x := range []int{240, 560} {
		p.path("line", fmt.Sprintf("%d,226 %d,226", x, x+100))
		p.path("line", fmt.Sprintf("%d,294 %d,294", x, x+100))
		p.text(x+20, 218, "soft", "UDP 7948")
		p.text(x+20, 286, "soft", "UDP 7949")
	}
	p.box(20, 410, 220, 50, "box", "client on the LAN", "its neighbor cache has node 1")
	p.path("way", "130,410 130,360")
	p.box(340, 410, 540, 50, "box", "router", "equal-cost routes to every node that announces the address")
	for _, x := range []int{450, 770} {
		p.path("way", fmt.Sprintf("%d,410 %d,360", x, x))
	}
	p.path("way", "360,410 215,360")
	p.text(20, 158, "soft", "UDP 7948: heartbeats and claims. UDP 7949: tunnels of forwarding direct")
	return p.String()
}
