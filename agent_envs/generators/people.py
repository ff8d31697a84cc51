"""Given names and family names that the synthetic data share."""

GIVEN_NAMES = """Ada Ben Carla Deniz Emma Femi Grace Hana Ivan Jonas Kira Leo Mina Noor Oscar Priya Quinn Rosa Samir Tara
Uma Victor Wanda Ximena Yusuf Zoe Amara Bruno Chloe Dario Elif Farid Greta Hugo Ines Jamal Kofi Lena Marek Nadia""".split()
FAMILY_NAMES = """Abara Bauer Castillo Dahl Eriksen Fontaine Garcia Haddad Ito Jansen Kowalski Lindgren Moreau Novak Okafor
Petrov Quist Rossi Santos Tanaka Ueda Varga Weber Xu Yilmaz Zhang Amari Berg Costa Duarte""".split()
