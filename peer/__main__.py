from peer.cli.entry import main

main()
